"""One line chart as inline SVG, written by hand: scales, ticks, lines told apart by colour, dash and marker.

Knows nothing about models. Colours are CSS variables (`--line-0`...), so one drawing serves light and dark
pages. Everything is a pure function of its arguments: the same chart gives the same text. Start with `draw`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import NamedTuple

from statewell.bench.axis import Axis

DASHES = ("", "7 3", "2 3", "11 3 2 3", "5 2 1 2 1 2", "14 4")
MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross")
LABEL_GAP = 15.0


class Point(NamedTuple):
    """A value on a line. Its mark is solid when measured, hollow when planned, and None draws no mark."""

    x: float
    y: float
    solid: bool | None = True


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve. `style` picks colour, dash and marker; `note` is written where a line ends early."""

    style: int
    label: str
    points: tuple[Point, ...]
    note: str = ""
    faint: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What to draw. `name` makes ids unique on a page; `summary` is read aloud in place of the picture."""

    name: str
    summary: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Sizes in CSS pixels: the whole picture and the margins around the plot (`right` holds the labels)."""

    width: int
    height: int
    left: int = 64
    right: int = 128
    top: int = 34
    bottom: int = 44

    def at_x(self, share: float) -> float:
        """Pixels from the left for a share of the x axis."""
        return self.left + share * (self.width - self.left - self.right)

    def at_y(self, share: float) -> float:
        """Pixels from the top for a share of the y axis."""
        return self.top + (1 - share) * (self.height - self.top - self.bottom)


def draw(chart: Chart, frame: Frame, css_class: str) -> str:
    """The chart as one `<svg>` element of class `css_class`."""
    clip = f"{chart.name}-{css_class}"
    parts = [
        f'<svg class="chart {css_class}" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{escape(chart.summary)}">',
        f'<clipPath id="{clip}"><rect x="{frame.left - 6}" y="{frame.top - 6}" '
        f'width="{frame.width - frame.left - frame.right + 12}" '
        f'height="{frame.height - frame.top - frame.bottom + 12}"/></clipPath>',
        *_axes(chart, frame),
        f'<g clip-path="url(#{clip})">',
        *(_curve(line, chart, frame) for line in sorted(chart.lines, key=lambda line: not line.faint)),
        "</g>",
        *_labels(chart, frame),
        *_notes(chart, frame),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part)


def key(style: int) -> str:
    """A short piece of the line with its marker, to stand beside a name in text."""
    dash = DASHES[style % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<svg class="key s{style}" viewBox="0 0 34 12" aria-hidden="true">'
        f'<path class="line" d="M0 6H34"{dashed}/>{_marker(style, 17, 6, True)}</svg>'
    )


def _axes(chart: Chart, frame: Frame) -> list[str]:
    left, right = frame.at_x(0), frame.at_x(1)
    low = frame.at_y(0)
    parts = []
    for value, text in chart.y.ticks:
        y = frame.at_y(chart.y.place(value))
        parts.append(f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for value, text in chart.x.ticks:
        x = frame.at_x(chart.x.place(value))
        parts.append(f'<path class="axis" d="M{x:.1f} {low:.1f}v5"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{low + 18:.1f}" text-anchor="middle">{escape(text)}</text>')
    parts.append(f'<path class="axis" d="M{left:.1f} {low:.1f}H{right:.1f}"/>')
    parts.append(f'<text class="title" x="4" y="14">{escape(chart.y.title)}</text>')
    place = f'x="{(left + right) / 2:.1f}" y="{frame.height - 6}" text-anchor="middle"'
    parts.append(f'<text class="title" {place}>{escape(chart.x.title)}</text>')
    return parts


def _curve(line: Line, chart: Chart, frame: Frame) -> str:
    spots = [(*_spot(point, chart, frame), point.solid) for point in line.points]
    if not spots:
        return ""
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in spots)
    dash = DASHES[line.style % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash and not line.faint else ""
    kind = "line faint" if line.faint else "line"
    parts = [f'<g class="s{line.style}"><path class="{kind}" d="{path}"{dashed}/>']
    parts += [_marker(line.style, x, y, solid) for x, y, solid in spots if solid is not None]
    return "".join(parts) + "</g>"


def _marker(style: int, x: float, y: float, solid: bool) -> str:
    shape = {
        "circle": f"M{x - 3.6:.1f} {y:.1f}a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0Z",
        "square": f"M{x - 3.3:.1f} {y - 3.3:.1f}h6.6v6.6h-6.6Z",
        "triangle": f"M{x:.1f} {y - 4.4:.1f}l4.4 7.6h-8.8Z",
        "diamond": f"M{x:.1f} {y - 4.8:.1f}l4.4 4.8l-4.4 4.8l-4.4 -4.8Z",
        "down": f"M{x:.1f} {y + 4.4:.1f}l4.4 -7.6h-8.8Z",
        "cross": f"M{x - 3.6:.1f} {y - 1.3:.1f}h2.3v-2.3h2.6v2.3h2.3v2.6h-2.3v2.3h-2.6v-2.3h-2.3Z",
    }[MARKERS[style % len(MARKERS)]]
    return f'<path class="{"mark" if solid else "mark hollow"}" d="{shape}"/>'


def _spot(point: Point, chart: Chart, frame: Frame) -> tuple[float, float]:
    return frame.at_x(chart.x.place(point.x)), frame.at_y(chart.y.place(point.y))


def _labels(chart: Chart, frame: Frame) -> list[str]:
    """Names at the right end of the lines, moved apart where they would touch, each tied to its line."""
    ends = []
    for line in chart.lines:
        if line.label and line.points and not line.faint and not line.note:
            x, y = _spot(line.points[-1], chart, frame)
            ends.append((min(max(y, frame.top), frame.at_y(0)), x, line))
    ends.sort(key=lambda end: end[0])
    places = spread_apart([end[0] for end in ends], LABEL_GAP, 12, frame.height - frame.bottom + 4)
    left = frame.at_x(1)
    parts = []
    for (y, x, line), place in zip(ends, places, strict=True):
        parts.append(f'<path class="lead s{line.style}" d="M{x + 6:.1f} {y:.1f}L{left + 20:.1f} {place:.1f}"/>')
        parts.append(
            f'<text class="label s{line.style}" x="{left + 24:.1f}" y="{place + 4:.1f}">{escape(line.label)}</text>'
        )
    return parts


def spread_apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions in the order of `wanted` (ascending), at least `gap` apart, near their wish, within
    low..high.

    Groups that collide share one centre (the mean of what they want), which keeps the movement small.
    """
    groups: list[tuple[float, int]] = []  # (centre, members)
    for wish in wanted:
        centre, members = wish, 1
        while groups and groups[-1][0] + (groups[-1][1] + members) * gap / 2 > centre:
            before, more = groups.pop()
            centre = (before * more + centre * members) / (more + members)
            members += more
        groups.append((centre, members))
    places = [centre + (member - (members - 1) / 2) * gap for centre, members in groups for member in range(members)]
    for index in range(len(places)):
        places[index] = max(places[index], low + index * gap)
    for back in range(len(places)):
        index = len(places) - 1 - back
        places[index] = min(places[index], high - back * gap)
    return places


def _notes(chart: Chart, frame: Frame) -> list[str]:
    """A note beside the end of a line that stops early, at the height where the fewest other lines pass."""
    parts = []
    for line in chart.lines:
        if not line.note or not line.points:
            continue
        x, y = _spot(line.points[-1], chart, frame)
        texts = [line.label, *line.note.split("\n")]
        height = 13 * len(texts)
        others = [spot for other in chart.lines if other is not line for spot in _samples(other, chart, frame, x)]
        options = [y - height - 4, y + 20, y - height - 24, y + 40, y - height - 44, y + 60]
        fitting = [top for top in options if frame.top + 8 <= top <= frame.at_y(0) - height + 6] or options[:1]
        top = min(fitting, key=lambda top: sum(top - 14 <= spot <= top + height for spot in others))
        for index, text in enumerate(texts):
            css = f"label s{line.style}" if index == 0 else "note"
            parts.append(f'<text class="{css}" x="{x + 9:.1f}" y="{top + 13 * index:.1f}">{escape(text)}</text>')
    return parts


def _samples(line: Line, chart: Chart, frame: Frame, start: float) -> list[float]:
    """Heights at which `line` passes the 120 pixels to the right of `start`."""
    spots = [_spot(point, chart, frame) for point in line.points]
    heights = []
    for (x0, y0), (x1, y1) in pairwise(spots):
        for step in range(9):
            x, y = x0 + (x1 - x0) * step / 8, y0 + (y1 - y0) * step / 8
            if start <= x <= start + 120:
                heights.append(y)
    return heights
