"""How figures and names of a comparison are written: one place, so the live table and the report agree.

Knows no HTML and no terminal. Start with `title` and `held_out`.
"""

from __future__ import annotations

from collections.abc import Sequence

from statewell.bench.results import Row
from statewell.config.numbers import format_bytes

TITLES = {
    "gpt2": ("GPT-2", "GPT-2"),
    "linear_attention": ("Linear attention", "Linear"),
    "deltanet": ("DeltaNet", "DeltaNet"),
    "gated_deltanet": ("Gated DeltaNet", "Gated DN"),
    "kimi_linear": ("Kimi Linear", "Kimi Lin."),
    "kimi_k3": ("Kimi K3", "Kimi K3"),
}
NOTHING = "–"


def title(arch: str, short: bool = False) -> str:
    """The architecture's printed name; one without a known title is written with spaces for underscores."""
    known = TITLES.get(arch)
    return known[1 if short else 0] if known else arch.replace("_", " ")


def count(value: float | None) -> str:
    """A whole number with thousands separated, or a dash when it was not measured."""
    return NOTHING if value is None else f"{round(value):,}"


def counted(number: int, noun: str) -> str:
    """A count with its noun, in the plural where it belongs: 1 seed, 2 seeds."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def bits(value: float | None) -> str:
    """Bits per byte to three decimals, or a dash when not measured."""
    return NOTHING if value is None else f"{value:.3f}"


def rounded(value: float | None) -> str:
    """Three significant figures, with k, M or G for thousands, millions or billions."""
    if value is None:
        return NOTHING
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def size(value: float | None) -> str:
    """Bytes in KiB, MiB or GiB (powers of 1024), or a dash."""
    return NOTHING if value is None else format_bytes(value)


def milliseconds(value: float | None) -> str:
    """A duration in seconds, written in ms with three significant figures."""
    return NOTHING if value is None else f"{value * 1e3:.3g} ms"


def context(tokens: int) -> str:
    """A context as people write it on an axis: 256, 1Ki, 32Ki, 1Mi."""
    for unit, letter in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if tokens >= unit and tokens % unit == 0:
            return f"{tokens // unit}{letter}"
    return f"{tokens:,}"


def duration(seconds: float | None) -> str:
    """Time left or taken: 42 s, 3 min 05 s, 1 h 02 min."""
    if seconds is None:
        return NOTHING
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def times(ratio: float) -> str:
    """How many times more: one decimal below ten, whole numbers above."""
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:,.0f}"


def listing(names: Sequence[str], last: str = "and") -> str:
    """Names in a sentence: a, b and c."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def within(row: Row) -> str:
    """The clause naming the rows this one cannot be told apart from, or an empty string."""
    peers = [title(peer, short=True) for peer in row["within_spread_of"]]
    return f"within the spread of {listing(peers)}" if peers else ""


def held_out(row: Row) -> str:
    """Held-out bits per byte with its spread over seeds, where there is more than one."""
    text = bits(row["val_bits_per_byte"])
    return text if row["spread"] is None else f"{text} ± {row['spread']:.3f}"
