"""What a comparison tells whoever watches it, as values; the command line draws them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from statewell.bench.results import Row
from statewell.train.events import EvalEvent, NoticeEvent, StepEvent


@dataclass(frozen=True, kw_only=True)
class RowBegun:
    """Work on an architecture begins, or goes on after an interrupt. seeds: how many runs its row takes."""

    arch: str
    seeds: int


@dataclass(frozen=True, kw_only=True)
class Training:
    """One event of the run of `arch` with `seed`."""

    arch: str
    seed: int
    event: StepEvent | EvalEvent


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """Training of `arch` is over; `what` is being found out now."""

    arch: str
    what: str


@dataclass(frozen=True, kw_only=True)
class RowDone:
    """The row is complete and on disk; `kept` when it was there before this process began."""

    row: Row
    kept: bool


CompareEvent = RowBegun | Training | Measuring | RowDone | NoticeEvent
OnCompareEvent = Callable[[CompareEvent], None]


def ignore(event: CompareEvent) -> None:
    """Watch nothing."""
