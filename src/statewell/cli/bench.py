"""`statewell bench`: speed beside peers in the same run, and beside what this machine can do at most."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statewell.cli.terminal import JsonFlag, print_json, say, stderr, stdout
from statewell.errors import RequestError

if TYPE_CHECKING:
    from rich.table import Table

    from statewell.bench.alternate import SpeedRow
    from statewell.bench.speed import OnCase

EXAMPLE = "statewell bench ops --against transformers,torch"
INTERRUPTED = 130  # what shells report for a process ended by Ctrl-C


def bench(
    suite: Annotated[str, typer.Argument(help="ops, decode, train, serve, or limits of this machine.")],
    against: Annotated[
        str, typer.Option(help="Peers, such as transformers,torch,fla-naive; reference is ours in plain torch.")
    ] = "",
    rounds: Annotated[int | None, typer.Option(help="Timed rounds of every case; each suite has its own.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small shapes, few rounds: seconds, and rough.")] = False,
    only: Annotated[str, typer.Option(help="Only cases whose name has this in it, such as kda.")] = "",
    sizes: Annotated[str, typer.Option(help="For train: nano, tiny or small, or several. Default tiny,small.")] = "",
    tokens: Annotated[str, typer.Option(help="For train: lengths of the sequence. Default 1024,8192.")] = "",
    instructions: Annotated[
        str | None, typer.Option(help="Compiled kernels of this instruction set, one that doctor names.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of torch and of the kernels; torch's own choice.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON document into this file.")] = None,
    json: JsonFlag = False,
) -> None:
    """Time operations, decoding, training or serving, alone or against peers: in turn in one process, medians, ratios.

    A ratio is the peer's median over ours: 2 means twice as fast. Limits are the fp32 products of torch and the reading
    of memory, measured before and after. Where spreads are wide the machine was busy, and ratios are worth little.
    """
    from statewell.bench.speed import SpeedBench, SpeedRequest, write

    request = SpeedRequest(
        suite=suite,
        against=_words(against),
        rounds=rounds,
        quick=quick,
        only=only,
        sizes=_words(sizes),
        tokens=_counts(tokens),
        instructions=instructions,
        command=shlex.join(["statewell", *(word for word in sys.argv[1:] if word != "--debug")]),
    )
    _set_threads(threads)
    wanted = SpeedBench(request)
    finished = True
    try:
        with _progress() as on_case:
            wanted.run(on_case)
    except KeyboardInterrupt:
        finished = False
    document = wanted.document()
    if out is not None:
        write(document, out)
    if json:
        print_json(document)
    else:
        stdout().print(table(wanted.rows, [] if suite == "limits" else wanted.limits))
    if not finished:
        say("Stopped; only what was measured until then is shown.")
        raise typer.Exit(INTERRUPTED)


def _words(listed: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in listed.split(",") if word.strip())


def _counts(listed: str) -> tuple[int, ...]:
    from statewell.config.numbers import parse_count

    return tuple(parse_count(word) for word in _words(listed))


def _set_threads(threads: int | None) -> None:
    import torch

    if threads is None:
        return
    if threads < 1:
        raise RequestError(f"--threads is {threads}; give 1 or more.")
    torch.set_num_threads(threads)


@contextmanager
def _progress() -> Iterator[OnCase]:
    """A bar on a terminal, a line for each case elsewhere; on stderr."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if not stderr().is_terminal:
        yield lambda name, before, total: say(f"{before + 1} of {total}: {name}")
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=stderr(), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda name, before, total: progress.update(task, description=name, completed=before, total=total)


def table(rows: Sequence[SpeedRow], limits: Sequence[SpeedRow]) -> Table:
    """The rows for a person, two lines each so that 80 columns are enough; under them what this machine can do."""
    from rich import box
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    drawn.add_column("")
    for column in ("median\nmin - max", "rate\nof the limit", "ratio"):
        drawn.add_column(column, justify="right", no_wrap=column != "ratio")
    for row in rows:
        drawn.add_row(*_cells(row))
    if limits:
        said = "; ".join(f"{row['name']}: {_number(row['max'])} {row['unit']}" for row in limits)
        drawn.caption = f"limits: {said}"
    return drawn


def _cells(row: SpeedRow) -> list[str]:
    name = row["name"].replace(", ", ",\n", 1)
    spread = f"{_number(row['min'])} - {_number(row['max'])}"
    rate = "" if row["rate"] is None else f"{_number(row['rate'])} {row['rate_unit']}\n{row['limit_share']:.0%}"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f} x\n{row['peer']}"
    return [name, f"{_number(row['median'])} {row['unit']}\n{spread}", rate, ratio]


def _number(value: float) -> str:
    """Three figures, thousands separated."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
