"""How long `statewell plan` and `--help` take from a cold interpreter: five warm runs of each, in turn.

python benchmarks/bench_start.py --json benchmarks/results/NAME.json
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from alternate import alternate, report, row

COMMANDS = (("plan", "kimi-k3", "--json"), ("--help",), ("plan", "--help"), ("compare", "--help"))
RUN = "from statewell.cli.main import run; run()"


def process(arguments: tuple[str, ...]) -> Callable[[], object]:
    """A run of the command in an interpreter of its own."""
    command = [sys.executable, "-c", RUN, *arguments]
    return lambda: subprocess.run(command, capture_output=True, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="record the result in this file")
    asked = parser.parse_args()
    seconds = alternate({" ".join(command): process(command) for command in COMMANDS}, rounds=5, warm=2)
    report([row(f"statewell {name}", taken) for name, taken in seconds.items()], asked.json)


if __name__ == "__main__":
    main()
