"""`statewell chat`: a conversation, in the terminal or over a pipe, whose memory is kept, saved and forked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statewell.cli.generate import DEFAULTS
from statewell.cli.terminal import say
from statewell.config.engine import EngineConfig, sessions_folder
from statewell.config.numbers import format_bytes, parse_count
from statewell.engine.sampling import Sampling

if TYPE_CHECKING:
    from statewell.engine.conversation import Conversation

EXAMPLE = "statewell chat kimi_k3:nano --max-tokens 120"


def chat(
    model: Annotated[
        str, typer.Argument(help="A run, a model or checkpoint folder, a preset found here, or kimi_k3:nano.")
    ],
    system: Annotated[str, typer.Option(help="What the model is told before everything else.")] = "",
    max_tokens: Annotated[int, typer.Option(help="New tokens of an answer at most.", min=1)] = 256,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest.")] = DEFAULTS.temperature,
    top_k: Annotated[int | None, typer.Option(help="Only from the K likeliest tokens.")] = DEFAULTS.top_k,
    top_p: Annotated[float, typer.Option(help="Only from the likeliest that reach this sum.")] = DEFAULTS.top_p,
    min_p: Annotated[float, typer.Option(help="Only from those this likely beside the likeliest.")] = DEFAULTS.min_p,
    seed: Annotated[int, typer.Option(help="The same seed gives the same conversation.")] = DEFAULTS.seed,
    stop: Annotated[list[str] | None, typer.Option(help="End an answer before this text; may be given again.")] = None,
    memory_budget: Annotated[str, typer.Option(help="Bytes that all memory here may take.")] = "4Gi",
    sessions: Annotated[
        Path | None, typer.Option(help="Folder of saved conversations; default: your data folder's.")
    ] = None,
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
    """Talk with MODEL: answers on stdout, what was reused of its memory on stderr. A line is a message, /help lists
    what else there is. Without a terminal, lines are read from stdin until it ends.
    """
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    engine = EngineConfig(rows=1, memory_budget=parse_count(memory_budget))
    cache_bytes = None if expert_cache is None else parse_count(expert_cache)
    from statewell.checkpoints.load import load
    from statewell.cli.chat_lines import ChatLines
    from statewell.engine.conversation import ChatSettings, Conversation

    loaded = load(model, experts=experts, expert_cache=cache_bytes, layers=layers)
    settings = ChatSettings(
        sampling=sampling, max_tokens=max_tokens, stop=tuple(stop or ()), system=system, engine=engine
    )
    conversation = Conversation(loaded, settings)
    say(greeting(conversation, memory_budget))
    ChatLines(conversation, sessions or conversations_folder()).run(sys.stdin)


def greeting(conversation: Conversation, budget: str) -> str:
    """Who is there, in which format, in how much memory."""
    name, held = conversation.engine.model.config.name, format_bytes(parse_count(budget))
    return f"{name}; chat format: {conversation.template_name}; memory budget {held}. /help lists commands."


def conversations_folder() -> Path:
    """Where conversations are kept by default: with the sessions of a server without keys, so that either can go on
    with the other's.
    """
    return sessions_folder() / "open"
