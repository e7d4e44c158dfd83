"""The three figures of a comparison, from its rows: loss, memory against context, time per token against
context.

Each is drawn twice, wide and narrow, and the page shows the one that fits: text keeps its size on a phone.
The numbers behind each figure come with it as a table. Start with `loss_curves`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statewell.architectures import ARCHITECTURES
from statewell.bench import axis, chart, words
from statewell.bench.axis import Axis
from statewell.bench.chart import Chart, Frame, Line, Point
from statewell.bench.results import MEMORY_CONTEXTS, Row

WIDE = Frame(width=880, height=430, right=142)
HALF = Frame(width=540, height=392, right=142, left=62)
NARROW = Frame(width=328, height=320, left=52, right=90, top=30)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawn figure: its heading, the two drawings, what to know when reading it, and its numbers."""

    heading: str
    wide: str
    narrow: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def style_of(arch: str) -> int:
    """The colour, dash and marker of an architecture: its place in the registry, whichever rows are shown."""
    known = list(ARCHITECTURES)
    return known.index(arch) if arch in known else len(known)


def loss_curves(rows: Sequence[Row]) -> Figure | None:
    """Held-out bits per byte as training goes on, the training loss faint behind; None before there are two
    points.
    """
    shown = [row for row in rows if len(row["val_curve"]) > 1]
    if not shown:
        return None
    finals = [row["val_curve"][-1]["bits_per_byte"] for row in shown]
    starts = [_settled(row) for row in shown]
    low, high = min(finals), max(starts)
    low -= 0.06 * (high - low)
    most = max(row["val_curve"][-1]["tokens"] for row in shown)

    def draw(frame: Frame, short: bool, css_class: str) -> str:
        lines = [line for row in shown for line in _loss_lines(row, short)]
        x = axis.linear("training tokens", 0, most, lambda value: words.rounded(value), most=4 if short else 8)
        y = axis.linear("held-out bits per byte", low, high, lambda value: f"{value:.3g}")
        summary = "Held-out bits per byte against training tokens; the final values are in the table above."
        # the plot ends at the last token: a tick past it would leave an empty strip
        x = Axis(title=x.title, low=0, high=most, log=False, ticks=tuple(t for t in x.ticks if t[0] <= most))
        return chart.draw(Chart(name="loss", summary=summary, x=x, y=y, lines=tuple(lines)), frame, css_class)

    tokens = sorted({point["tokens"] for row in shown for point in row["val_curve"]})
    held_out = {row["arch"]: {p["tokens"]: p["bits_per_byte"] for p in row["val_curve"]} for row in shown}
    return Figure(
        heading="Learning",
        wide=draw(WIDE, False, "wide"),
        narrow=draw(NARROW, True, "narrow"),
        caption="Lines with marks: a fixed part of the held-out text, in windows of the training length from empty "
        "memory; the table's figure rests on more of it. Faint lines: the training batches. Lower is better. All "
        "start near 8 bits, above the frame. First seed.",
        columns=("tokens", *(words.title(row["arch"]) for row in shown)),
        rows=tuple((words.count(at), *(words.bits(held_out[row["arch"]].get(at)) for row in shown)) for at in tokens),
    )


def _settled(row: Row) -> float:
    """The held-out figure after about a sixth of the training: what lies above would flatten all the rest."""
    points = row["val_curve"]
    early = [p for p in points if p["tokens"] >= points[-1]["tokens"] / 6]
    return early[0]["bits_per_byte"]


def _loss_lines(row: Row, short: bool) -> list[Line]:
    held_out = tuple(Point(p["tokens"], p["bits_per_byte"]) for p in row["val_curve"])
    train = tuple(Point(p["tokens"], p["train_bits_per_byte"], None) for p in row["curve"])
    style = style_of(row["arch"])
    return [
        Line(style=style, label="", points=train, faint=True),
        Line(style=style, label=words.title(row["arch"], short), points=held_out),
    ]


def memory_against_context(rows: Sequence[Row]) -> Figure | None:
    """Bytes one row remembers with, log-log: growing caches climb, fixed states stay level."""
    shown = [row for row in rows if row["memory_curve"]]
    if not shown:
        return None
    sizes = [point["bytes"] for row in shown for point in row["memory_curve"]]
    tokens = sorted({point["context"] for row in shown for point in row["memory_curve"]})

    def draw(frame: Frame, short: bool, css_class: str) -> str:
        lines = tuple(_memory_line(row, short) for row in shown)
        x = axis.contexts("tokens remembered", tokens, words.context, apart=0.3 if short else 0.16)
        y = axis.amounts("bytes of memory for one sequence", min(sizes) / 1.4, max(sizes), _whole_size)
        summary = "Bytes of memory against tokens remembered, both logarithmic."
        return chart.draw(Chart(name="memory", summary=summary, x=x, y=y, lines=lines), frame, css_class)

    planned = {row["arch"]: {p["context"]: p["bytes"] for p in row["memory_curve"]} for row in shown}
    return Figure(
        heading="Memory against context",
        wide=draw(HALF, False, "wide"),
        narrow=draw(NARROW, True, "narrow"),
        caption="Filled marks were measured on this machine and equal the plan to the byte; hollow marks are "
        f"planned. {_limits(shown)}Caches and states are fp32 here.",
        columns=("tokens", *(words.title(row["arch"]) for row in shown)),
        rows=tuple((words.count(at), *(words.size(planned[row["arch"]].get(at)) for row in shown)) for at in tokens),
    )


def _limits(rows: Sequence[Row]) -> str:
    limited = [f"{words.title(row['arch'])} has {row['limit']:,} positions" for row in rows if row["limit"]]
    return f"{words.listing(limited)}: past that its line is arithmetic only. " if limited else ""


def _memory_line(row: Row, short: bool) -> Line:
    measured = set(row["memory_measured"])
    shown = measured | {*MEMORY_CONTEXTS}
    points = tuple(
        Point(p["context"], p["bytes"], p["context"] in measured if p["context"] in shown else None)
        for p in row["memory_curve"]
    )
    return Line(style=style_of(row["arch"]), label=words.title(row["arch"], short), points=points)


def _whole_size(value: float) -> str:
    return words.size(value).replace(".0 ", " ")


def time_against_context(rows: Sequence[Row]) -> Figure | None:
    """Seconds for one more token against what the memory already holds."""
    shown = [row for row in rows if any(point["seconds"] is not None for point in row["time_per_token"])]
    if not shown:
        return None
    seconds = [p["seconds"] for row in shown for p in row["time_per_token"] if p["seconds"] is not None]
    tokens = sorted({point["context"] for row in shown for point in row["time_per_token"]})

    def draw(frame: Frame, short: bool, css_class: str) -> str:
        lines = tuple(_time_line(row, tokens[-1], short) for row in shown)
        x = axis.contexts("tokens remembered", tokens, words.context, apart=0.16 if short else 0.1)
        title = "time for one token, ms"
        if max(seconds) > 12 * min(seconds):
            y = axis.amounts(title, min(seconds) * 1e3, max(seconds) * 1e3, lambda value: f"{value:g}")
        else:
            y = axis.linear(title, 0, max(seconds) * 1e3, lambda value: f"{value:g}")
        summary = "Milliseconds for one token against tokens remembered."
        return chart.draw(Chart(name="time", summary=summary, x=x, y=y, lines=lines), frame, css_class)

    return Figure(
        heading="Time per token against context",
        wide=draw(HALF, False, "wide"),
        narrow=draw(NARROW, True, "narrow"),
        caption="Median of single steps, one sequence. The memory was filled with seeded random rows, not by "
        "reading that many tokens; what it holds does not change the work of a step.",
        columns=("tokens", *(words.title(row["arch"]) for row in shown)),
        rows=tuple((words.count(at), *(_time_cell(row, at) for row in shown)) for at in tokens),
    )


def _time_line(row: Row, last: int, short: bool) -> Line:
    points = tuple(Point(p["context"], p["seconds"] * 1e3) for p in row["time_per_token"] if p["seconds"] is not None)
    note = ""
    if points[-1].x < last and row["limit"]:
        note = f"ends at its\n{row['limit']:,} positions"
    return Line(style=style_of(row["arch"]), label=words.title(row["arch"], short), points=points, note=note)


def _time_cell(row: Row, context: int) -> str:
    for point in row["time_per_token"]:
        if point["context"] == context:
            return words.milliseconds(point["seconds"]) if point["seconds"] is not None else point["note"] or ""
    return words.NOTHING
