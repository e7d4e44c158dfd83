"""What the scripts beside this one share: things timed in turn, their rows, and how it was done, as `statewell bench`
has them.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from statewell.bench.alternate import SpeedRow, alternate, speed_row
from statewell.bench.speed import circumstances, write

__all__ = ["alternate", "report", "row"]


def row(name: str, seconds: list[float], peer: str | None = None, peer_seconds: list[float] | None = None) -> SpeedRow:
    """One line of a result: milliseconds, and how many times as fast as the peer's median it is."""
    theirs = None if peer_seconds is None else [1e3 * value for value in peer_seconds]
    return speed_row(name, "ms", [1e3 * value for value in seconds], peer, theirs)


def report(rows: list[SpeedRow], file: Path | None) -> None:
    """Print `rows` and, with a file, record them with the machine, the date and the command."""
    for entry in rows:
        against = "" if entry["ratio"] is None else f"   {entry['ratio']:6.2f} x {entry['peer']}"
        spread = f"{entry['min']:.1f}-{entry['max']:.1f}"
        print(f"{entry['name']:<44} {entry['median']:10.2f} {entry['unit']} ({spread}){against}")
    if file is not None:
        write({**circumstances(shlex.join(["python", *sys.argv])), "rows": rows}, file)
