"""`statewell generate`: text from a run or a shipped model as it comes, then its speed and its bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, cast

import typer

from statewell.cli.terminal import JsonFlag, print_json, say
from statewell.config.numbers import format_bytes, parse_count
from statewell.engine.sampling import Sampling

if TYPE_CHECKING:
    from statewell.checkpoints.expert_disk import CacheFigures
    from statewell.engine.generate import Statistics, TokenEvent

EXAMPLE = 'statewell generate kimi_k3:nano "def " --max-tokens 200 --stop "class "'
DEFAULTS = Sampling()
INTERRUPTED = 130  # what shells report for a process ended by Ctrl-C


def generate(
    model: Annotated[
        str, typer.Argument(help="A run, a model or checkpoint folder, a preset found here, or kimi_k3:nano.")
    ],
    prompt: Annotated[str, typer.Argument(help="The text to continue; '' starts a new document.")],
    max_tokens: Annotated[int, typer.Option(help="New tokens at most.")] = 64,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest.")] = DEFAULTS.temperature,
    top_k: Annotated[int | None, typer.Option(help="Only from the K likeliest tokens.")] = DEFAULTS.top_k,
    top_p: Annotated[float, typer.Option(help="Only from the likeliest that reach this sum.")] = DEFAULTS.top_p,
    min_p: Annotated[float, typer.Option(help="Only from those this likely beside the likeliest.")] = DEFAULTS.min_p,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = DEFAULTS.seed,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given again.")] = None,
    layers: Annotated[str | None, typer.Option(metavar="A:B", help="Only these layers, counted from 0.")] = None,
    experts: Annotated[
        str,
        typer.Option(metavar="dense|packed|disk", help="MXFP4 experts: unpacked, as they are, or read when chosen."),
    ] = "packed",
    expert_cache: Annotated[
        str | None,
        typer.Option(help="With --experts disk: bytes of experts kept in memory, such as 8Gi (the default)."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Continue PROMPT: the new text on stdout, speed and bytes of memory on stderr.

    Tokens are narrowed down in the order temperature, top-k, top-p, min-p.
    """
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    from statewell.checkpoints.load import load
    from statewell.checkpoints.packed import expert_cache as find_cache
    from statewell.engine.generate import generate as start

    cache_bytes = None if expert_cache is None else parse_count(expert_cache)
    loaded = load(model, experts=experts, expert_cache=cache_bytes, layers=layers)
    cache = find_cache(loaded) if experts == "disk" else None
    events = start(loaded, prompt, max_tokens=max_tokens, sampling=sampling, stop=stop or ())
    if json:
        text, last = _collect(events)
        document = {"model": loaded.config.name, "text": text, **_figures(last), "seed": seed}
        print_json(document | {"expert_cache": None if cache is None else asdict(cache.figures)})
        return
    last = _show(events)
    if last is not None:
        say(summary(_statistics(last)))
        if cache is not None:
            say(cache_summary(cache.figures))
        if last.finish_reason == "context":
            say(f"Stopped because {loaded.config.name} holds at most {loaded.config.context:,} tokens.")


def _collect(events: Iterator[TokenEvent]) -> tuple[str, TokenEvent]:
    every = list(events)
    return "".join(event.text for event in every), every[-1]


def _statistics(last: TokenEvent) -> Statistics:
    return cast("Statistics", last.statistics)  # the last event always has them


def _figures(last: TokenEvent) -> dict[str, object]:
    statistics = _statistics(last)
    return {
        "tokens": statistics.tokens,
        "prompt_tokens": statistics.prompt_tokens,
        "tokens_per_s": statistics.tokens_per_s,
        "prefill_tokens_per_s": statistics.prefill_tokens_per_s,
        "memory": {
            "used_bytes": statistics.used_bytes,
            "reserved_bytes": statistics.reserved_bytes,
            "dtypes": list(statistics.dtypes),
        },
        "finish_reason": last.finish_reason,
    }


def _show(events: Iterator[TokenEvent]) -> TokenEvent | None:
    """Write each event's text at once; the last event, or None when whoever reads stdout has gone."""
    event = None
    try:
        for event in events:
            write(event.text)
        write("\n")
    except KeyboardInterrupt:
        write("\n")
        say("Interrupted; the text above is what there was.")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # `| head` has read enough. Python flushes stdout once more at exit: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return None
    return event


def write(text: str) -> None:
    if sys.stdout.isatty():
        text = visible(text)
    encoding = sys.stdout.encoding or "utf-8"
    # A terminal that is not UTF-8 shows ? for what it lacks instead of ending the text with an error.
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
    sys.stdout.flush()


def visible(text: str) -> str:
    """`text` safe for a terminal: control characters, which could carry escape codes, become visible signs.

    Newlines and tabs stay. The others below U+0020 and U+007F become Unicode's control pictures (ESC: ␛),
    those from U+0080 to U+009F, which some terminals obey too, their number in angle brackets.
    """
    return text.translate(_SIGNS)


_SIGNS = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
_SIGNS |= {0x7F: "\u2421"} | {code: f"<U+{code:04X}>" for code in range(0x80, 0xA0)}


def summary(statistics: Statistics) -> str:
    """Speed and bytes of a finished generation, as two lines."""
    new, prompt = _tokens(statistics.tokens), _tokens(statistics.prompt_tokens)
    speed = f" at {statistics.tokens_per_s:,.0f} tokens/s" if statistics.tokens_per_s is not None else ""
    used, reserved = statistics.used_bytes, statistics.reserved_bytes
    return (
        f"{new}{speed}, after a prompt of {prompt} at {statistics.prefill_tokens_per_s:,.0f} tokens/s\n"
        f"memory: {used:,} B used ({format_bytes(used)}), {reserved:,} B reserved ({format_bytes(reserved)}),"
        f" {' and '.join(statistics.dtypes)}"
    )


def cache_summary(figures: CacheFigures) -> str:
    """What the cache of experts on a disk did, as one line."""
    asked = figures.hits + figures.misses
    return (
        f"experts: {figures.hits:,} of {asked:,} asked for were in a cache of {format_bytes(figures.capacity_bytes)}, "
        f"{figures.misses:,} were read; {figures.used_ahead:,} of {figures.read_ahead:,} read ahead were used; "
        f"{figures.read_bytes:,} B read ({format_bytes(figures.read_bytes)})"
    )


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count:,} tokens"
