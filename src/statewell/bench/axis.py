"""Axes of a chart: a range, linear or logarithmic, and ticks at round values a reader can take in.

Knows no drawing. Three makers: `linear`, `contexts` (tokens, powers of two), `amounts` (logarithmic bytes or
seconds).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Axis:
    """From `low` to `high`, linear or logarithmic, with the ticks to print."""

    title: str
    low: float
    high: float
    log: bool
    ticks: tuple[tuple[float, str], ...]

    def place(self, value: float) -> float:
        """Where `value` lies, 0 at `low` and 1 at `high`; outside values lie outside."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear(title: str, low: float, high: float, text: Callable[[float], str], most: int = 6) -> Axis:
    """A linear axis whose ends are ticks: steps of 1, 2 or 5 times a power of ten, at most about `most` of
    them.
    """
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    values = [index * step for index in range(first, last + 1)]
    return Axis(
        title=title,
        low=values[0],
        high=values[-1],
        log=False,
        ticks=tuple((value, text(value)) for value in values),
    )


def contexts(title: str, values: Sequence[int], text: Callable[[int], str], apart: float) -> Axis:
    """A logarithmic axis over `values` (token counts, ascending) with ticks at some of them.

    apart: the least distance of two ticks as a share of the axis. The ends always have one.
    """
    axis = Axis(title=title, low=float(values[0]), high=float(values[-1]), log=True, ticks=())
    kept = [values[0]]
    for value in values[1:-1]:
        if axis.place(value) - axis.place(kept[-1]) >= apart and 1 - axis.place(value) >= apart:
            kept.append(value)
    ticks = tuple((float(value), text(value)) for value in [*kept, values[-1]])
    return replace(axis, ticks=ticks)


def amounts(title: str, low: float, high: float, text: Callable[[float], str], most: int = 6) -> Axis:
    """A logarithmic axis from a power of two below `low` to one above `high`, with at most `most` ticks."""
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    last = max(last, first + 1)
    step = max(1, math.ceil((last - first) / (most - 1)))
    powers = range(first, last + 1, step)
    return Axis(
        title=title,
        low=2.0**first,
        high=2.0**last,
        log=True,
        ticks=tuple((2.0**power, text(2.0**power)) for power in powers),
    )
