"""`statewell serve`: OpenAI's API on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statewell.cli.terminal import say
from statewell.config.engine import EngineConfig, sessions_folder
from statewell.config.numbers import format_bytes, parse_count
from statewell.errors import MissingExtraError

EXAMPLE = "statewell serve kimi_k3:nano --port 8000 --memory-budget 2Gi"


def serve(
    model: Annotated[
        str, typer.Argument(help="A run, a model or checkpoint folder, a preset found here, or kimi_k3:nano.")
    ],
    host: Annotated[str, typer.Option(help="Where to listen; any but a loopback address needs a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8000,
    memory_budget: Annotated[str, typer.Option(help="Bytes of all conversations' memory together.")] = "4Gi",
    rows: Annotated[int, typer.Option(help="Conversations at a time; others wait.")] = 16,
    api_key_file: Annotated[Path | None, typer.Option(help="A file with one API key on each line.")] = None,
    allow_host: Annotated[list[str] | None, typer.Option(help="Another name clients may call it by.")] = None,
    sessions: Annotated[
        Path | None, typer.Option(help="Folder of saved sessions; default: statewell/sessions in your data folder.")
    ] = None,
    prefill_chunk: Annotated[int, typer.Option(help="Prompt tokens read between two steps.")] = 256,
    state_every: Annotated[int, typer.Option(help="Tokens between two states kept for reuse.")] = 128,
    draft: Annotated[int, typer.Option(help="Tokens guessed ahead from repeated text.", min=0, max=32)] = 0,
    drain: Annotated[int, typer.Option(help="Seconds that what runs gets to finish on SIGTERM.", min=0)] = 30,
    layers: Annotated[str | None, typer.Option(metavar="A:B", help="Only these layers, counted from 0.")] = None,
    experts: Annotated[
        str,
        typer.Option(metavar="dense|packed|disk", help="MXFP4 experts: unpacked, as they are, or read when chosen."),
    ] = "packed",
    expert_cache: Annotated[
        str | None,
        typer.Option(help="With --experts disk: bytes of experts kept in memory, such as 8Gi (the default)."),
    ] = None,
) -> None:
    """Serve MODEL over HTTP with OpenAI's API, until Ctrl-C or SIGTERM.

    Memory of earlier requests is used again where prompts begin alike; each answer says how much was, and if not why.
    """
    budget = parse_count(memory_budget)
    cache_bytes = None if expert_cache is None else parse_count(expert_cache)
    engine = EngineConfig(rows=rows, memory_budget=budget, prefill_chunk=prefill_chunk, state_every=state_every)
    try:
        from statewell.serve.run import ServeConfig
        from statewell.serve.run import serve as start
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{error.name} is not installed; get it with: pip install 'statewell[serve]'") from None
    from statewell.checkpoints.load import load

    config = ServeConfig(
        host=host,
        port=port,
        names=tuple(allow_host or ()),
        key_file=api_key_file,
        sessions=sessions or sessions_folder(),
        draft=draft,
        drain_s=drain,
        engine=engine,
    )
    loaded = load(model, experts=experts, expert_cache=cache_bytes, layers=layers)

    def ready(address: str) -> None:
        say(
            f"{loaded.config.name} at {address}/v1, {rows} conversations at a time in {format_bytes(budget)}; "
            "Ctrl-C ends it."
        )

    start(loaded, config, ready)
