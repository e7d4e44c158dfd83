"""What the OpenAPI document says of every route beside its normal answer."""

from __future__ import annotations

from statewell.serve import shapes

# their keys are of both kinds in FastAPI's own signature
Responses = dict[int | str, dict[str, object]]

FAILURES: Responses = {
    "4XX": {"model": shapes.ErrorReply, "description": "Refused."},
    "5XX": {"model": shapes.ErrorReply, "description": "Not done."},
}
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
EVENTS: Responses = {
    200: {
        "description": "The answer, or with `stream` server-sent events: one JSON document each, then [DONE].",
        "content": {"text/event-stream": {"schema": _EVENT}},
    }
}
