"""`statewell compare`: train the architectures alike, measure them, and show them side by side."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statewell.cli.terminal import JsonFlag, print_json, say, stdout
from statewell.errors import RequestError

if TYPE_CHECKING:
    from statewell.bench.budget import CompareRequest
    from statewell.bench.results import Results, Row

EXAMPLE = "statewell compare --quick"
INTERRUPTED = 130  # what shells report for a process ended by Ctrl-C

JSON_KEYS = (
    "arch",
    "parameters",
    "active_parameters",
    "compared_parameters",
    "flops_per_token",
    "val_bits_per_byte",
    "val_bits_per_byte_carried",
    "spread",
    "within_spread_of",
    "train_tokens_per_s",
    "decode_tokens_per_s",
    "recall",
    "memory_bytes",
    "memory_measured",
    "beyond_model_limit",
    "limit",
    "time_per_token",
    "run",
)


def compare(
    archs: Annotated[str, typer.Option(help="Which architectures, such as gpt2,kimi_k3; all six by default.")] = "",
    size: Annotated[str, typer.Option(help="nano, tiny or small.")] = "nano",
    minutes: Annotated[
        float | None,
        typer.Option(
            help="About how long all of it may take: every architecture gets the same tokens, as many as fit."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="307,200 training tokens each instead of 1,536,000.")] = False,
    seeds: Annotated[int, typer.Option(help="Runs per architecture; with 2 or more the spread is known.")] = 1,
    match: Annotated[
        str, typer.Option(help="active: the presets as they are. total: FFN widths changed to agree.")
    ] = "active",
    data: Annotated[
        list[Path] | None,
        typer.Option(help="A text file or folder of them; may be given again. Default: Python's own standard library."),
    ] = None,
    more: Annotated[list[Path] | None, typer.Argument(hidden=True)] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for runs, results.json and report.html. Default: named after the request."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Train all six on the same bytes, order and budget; then quality, speed and memory side by side.

    Interrupted, the same command goes on where it stopped.
    """
    if more and not data:
        raise RequestError(f"'{more[0]}' stands alone; name text with --data {more[0]}.")
    from statewell.bench.budget import CompareRequest

    request = CompareRequest(
        archs=tuple(name.strip() for name in archs.split(",") if name.strip()),
        size=size,
        seeds=seeds,
        match=match,
        quick=quick,
        minutes=minutes,
        data=(*(data or ()), *(more or ())),
        command=shlex.join(["statewell", *(word for word in sys.argv[1:] if word != "--debug")]),
    )
    _run(request, out or default_folder(request), json)


def _run(request: CompareRequest, folder: Path, json: bool) -> None:
    from statewell.bench.compare import REPORT
    from statewell.bench.compare import compare as start
    from statewell.cli.compare_table import final_tables, watch

    try:
        with watch(request) as on_event:
            results = start(request, folder, on_event)
    except KeyboardInterrupt:
        results = None
    if json and results is not None:
        print_json(document(results, folder / REPORT))
    elif results is not None and results["rows"]:
        stdout().print(*final_tables(results["rows"]), sep="\n")
        typer.echo(f"report: {folder / REPORT}")
    if results is None or not results["finished"]:
        say(f"Stopped; what is done is kept in {folder}. The same command goes on from there.")
        raise typer.Exit(INTERRUPTED)


def default_folder(request: CompareRequest) -> Path:
    """A folder for each kind of request, so that the next one neither resumes nor meets another's runs."""
    parts = [request.size]
    if request.quick:
        parts.append("quick")
    if request.minutes is not None:
        parts.append(f"{request.minutes:g}min")
    if request.seeds > 1:
        parts.append(f"{request.seeds}seeds")
    if request.match != "active":
        parts.append(request.match)
    parts += sorted({arch.replace("-", "_") for arch in request.archs})
    parts += [path.resolve().name for path in request.data]
    return Path("runs") / f"compare-{'-'.join(parts)}"


def document(results: Results, report: Path) -> dict[str, object]:
    """What `--json` prints: the settings, and each row without its curves and samples, which results.json
    has.
    """
    return {
        "report": str(report),
        "finished": results["finished"],
        "settings": results["settings"],
        "rows": [_plain_row(row) for row in results["rows"]],
    }


def _plain_row(row: Row) -> dict[str, object]:
    return {key: value for key, value in row.items() if key in JSON_KEYS}
