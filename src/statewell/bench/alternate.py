"""Time several things against each other in one process: warmed, then in turn (A B A B), so that a busy moment of the
machine falls on all of them. A row says the spread, the ratio to a peer and the share of what this machine can do.

Knows nothing of models or kernels. Start at `alternate`; a `Case` is what the suites of `bench` are made of.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from statewell.bench.limits import Limits, Work

OURS = "statewell"  # the side of every case that is ours
WARM = 2  # untimed turns before the timed ones
Run = Callable[[], object]


class SpeedRow(TypedDict):
    """One thing timed, against one peer or none.

    median, min, max: in `unit`, lower is better but for the machine's own limits. ratio: the peer's median over this
    one's, 2 meaning twice as fast (or half the memory). rate: work over time, in rate_unit. limit_share: of the best
    rate this machine reached in the same run.
    """

    name: str
    unit: str
    median: float
    min: float
    max: float
    peer: str | None
    peer_median: float | None
    peer_min: float | None
    peer_max: float | None
    ratio: float | None
    rate: float | None
    rate_unit: str | None
    limit_share: float | None


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row to be made of one run, which must be among the case's. peer: another of them; shown_as: its printed name.

    work: what one call does, where its rate is of interest.
    """

    name: str
    run: str
    peer: str | None = None
    shown_as: str | None = None
    work: Work | None = None


@dataclass(frozen=True, kw_only=True)
class Lineup:
    """The things to be timed in turn, by name, and the rows to make of them. calls: of each in one timed stretch.

    warm: untimed turns first.
    """

    runs: Mapping[str, Run]
    lines: Sequence[Line]
    calls: int = 1
    warm: int = WARM


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something to be measured by itself. measure: makes inputs and models, measures, and lets go of them again."""

    name: str
    measure: Callable[[], list[SpeedRow]]


def alternate(
    runs: Mapping[str, Run],
    rounds: int,
    warm: int = WARM,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each of `runs`, `rounds` times, in turn, after `warm` untimed rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(warm + rounds):
        for name, run in runs.items():
            begin = clock()
            run()
            if turn >= warm:
                seconds[name].append(clock() - begin)
    return seconds


def repeated(call: Run, times: int) -> Run:
    """`call` so many times over, keeping none of its results: a short one cannot be timed alone."""

    def run() -> None:
        for _ in range(times):
            call()

    return run


def time_lineup(lineup: Lineup, rounds: int) -> list[SpeedRow]:
    """The lines of `lineup`, in milliseconds of one call."""
    runs = {name: repeated(run, lineup.calls) for name, run in lineup.runs.items()}
    taken = alternate(runs, rounds, lineup.warm)
    each = {name: [value / lineup.calls for value in values] for name, values in taken.items()}
    return [_timed_row(line, each) for line in lineup.lines]


def _timed_row(line: Line, seconds: Mapping[str, list[float]]) -> SpeedRow:
    own = [1e3 * value for value in seconds[line.run]]
    theirs = None if line.peer is None else [1e3 * value for value in seconds[line.peer]]
    row = speed_row(line.name, "ms", own, line.shown_as or line.peer, theirs)
    if line.work is not None:
        row["rate"] = line.work.amount / statistics.median(seconds[line.run]) / 1e9
        row["rate_unit"] = line.work.unit
    return row


def shared(row: SpeedRow, limits: Limits) -> SpeedRow:
    """The row with its share of the limit, where it has a rate."""
    if row["rate"] is None or row["rate_unit"] is None:
        return row
    return {**row, "limit_share": 1e9 * row["rate"] / limits.of(row["rate_unit"])}


def speed_row(
    name: str, unit: str, values: Sequence[float], peer: str | None = None, theirs: Sequence[float] | None = None
) -> SpeedRow:
    """A row of `values` in `unit`, with the peer's beside them where there is one."""
    median = statistics.median(values)
    known = theirs is not None
    return SpeedRow(
        name=name,
        unit=unit,
        median=median,
        min=min(values),
        max=max(values),
        peer=peer if known else None,
        peer_median=statistics.median(theirs) if known else None,
        peer_min=min(theirs) if known else None,
        peer_max=max(theirs) if known else None,
        ratio=statistics.median(theirs) / median if known else None,
        rate=None,
        rate_unit=None,
        limit_share=None,
    )
