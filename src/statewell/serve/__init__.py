"""The server: OpenAI's API over HTTP on one engine. Needs the extra `serve`. Start at `run.py`, then `app.py`.

`service.py` owns the engine and its thread; `prompts.py` turns what was asked into what the engine takes, `reading.py`
what it says into text; `chat.py`, `completions.py`, `session_routes.py` and `small_routes.py` are the routes.
"""
