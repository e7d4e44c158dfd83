"""Numbers as people write them: `1Mi` tokens, `80Gi` bytes, `2.5M` parameters; and back again."""

from __future__ import annotations

import re

from statewell.errors import RequestError

SUFFIXES = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
DECIMAL_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k"))


def parse_count(text: str | int) -> int:
    """Read a whole number such as `1024`, `32k`, `1Mi` or `1,048,576`.

    k and M are powers of 1000, Ki, Mi, Gi powers of 1024. Raises RequestError when it is no such number.
    """
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"([0-9][0-9,_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    suffix = match.group(2) if match else None
    if match is None or suffix not in SUFFIXES:
        raise RequestError(
            f"'{text}' is not a count; write a whole number, optionally with k, M, G, Ki, Mi or Gi, as in 32k or 1Mi."
        )
    value = float(match.group(1).replace(",", "").replace("_", "")) * SUFFIXES[suffix]
    if value != int(value):
        raise RequestError(f"'{text}' is {value:g}, not a whole number; write it out in full.")
    return int(value)


def format_bytes(count: float) -> str:
    """`434110464` -> `414.0 MiB`; units are powers of 1024."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(BINARY_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{int(size):,} B" if unit == 0 else f"{size:,.1f} {BINARY_UNITS[unit]}"


def format_count(count: float) -> str:
    """`2779484476000` -> `2.78T`; units are powers of 1000."""
    for size, unit in DECIMAL_UNITS:
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"
