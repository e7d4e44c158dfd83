"""Time several things against each other in one process: warmed, alternated, medians, extremes, and how it was done."""

from __future__ import annotations

import json
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch

from statewell.bench.machine import look


def alternate(runs: dict[str, Callable[[], object]], rounds: int, warm: int = 1) -> dict[str, list[float]]:
    """Seconds of each of `runs`, `rounds` times, in turn, after `warm` untimed rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(warm + rounds):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if turn >= warm:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def row(name: str, seconds: list[float], peer: str | None = None, peer_seconds: list[float] | None = None) -> dict:
    """One line of a result: milliseconds, and how many times as fast as the peer's median it is."""
    median = statistics.median(seconds)
    ratio = None if peer_seconds is None else statistics.median(peer_seconds) / median
    milliseconds = {"median": median * 1e3, "min": min(seconds) * 1e3, "max": max(seconds) * 1e3}
    return {"name": name, "unit": "ms", **milliseconds, "peer": peer, "ratio": ratio}


def report(rows: list[dict], file: Path | None) -> None:
    """Print `rows` and, with a file, record them with the machine, the date and the command."""
    for entry in rows:
        against = "" if entry["ratio"] is None else f"   {entry['ratio']:6.2f} x {entry['peer']}"
        spread = f"{entry['min']:.1f}-{entry['max']:.1f}"
        print(f"{entry['name']:<44} {entry['median']:10.2f} {entry['unit']} ({spread}){against}")
    if file is not None:
        machine = look()
        document = {
            "command": shlex.join(["python", *sys.argv]),
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": {"cpu": machine.cpu, "cores": machine.cores, "instructions": machine.instructions},
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "threads": torch.get_num_threads(),
            "rows": rows,
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document, indent=1) + "\n")
