"""Fuzz the targets guided by coverage (atheris), within a number of runs and of seconds for each.

python -m tests.fuzz.run [TARGET...] [--runs N] [--seconds S]
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

WATCHED = ["statewell.formats", "statewell.config", "statewell.memory.snapshot", "statewell.text"]


def fuzz(name: str, runs: int, seconds: int) -> None:
    """Fuzz one target in this process, which libFuzzer ends and counts the runs of."""
    import atheris

    # what is watched has to be imported here first
    with atheris.instrument_imports(include=WATCHED):
        from tests.fuzz.seeds import seeds
        from tests.fuzz.targets import TARGETS, only_our_errors

    def one(raw: bytes) -> None:
        only_our_errors(TARGETS[name], raw)

    with tempfile.TemporaryDirectory(prefix="statewell-corpus-") as folder:
        for number, seed in enumerate(seeds(name)):
            (Path(folder) / f"seed{number}").write_bytes(seed)
        limits = [f"-runs={runs}", f"-max_total_time={seconds}", "-max_len=20000", "-rss_limit_mb=3000", "-seed=1"]
        atheris.Setup([sys.argv[0], *limits, folder], one)
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="of tests/fuzz/targets.py; all when none is named")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=60)
    asked = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("no fuzzing: atheris is not installed, which not every Python has; the suite mutates all the same")
        return
    if len(asked.targets) == 1:
        fuzz(asked.targets[0], asked.runs, asked.seconds)
        return
    from tests.fuzz.targets import TARGETS

    for name in asked.targets or TARGETS:  # each in a process of its own, which libFuzzer ends
        limits = ["--runs", str(asked.runs), "--seconds", str(asked.seconds)]
        done = subprocess.run([sys.executable, "-m", "tests.fuzz.run", name, *limits], check=False)
        if done.returncode:
            sys.exit(f"{name}: an error that is not ours, or memory past its limit; the input is above")


if __name__ == "__main__":
    main()
