"""RUN/metrics.jsonl: one JSON line per step and per evaluation, written as they happen."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from types import TracebackType

from statewell.formats.files import write_atomically
from statewell.train.events import EvalEvent, StepEvent

_KINDS: dict[type, str] = {StepEvent: "step", EvalEvent: "eval"}
# what is only of use while somebody watches
_NOT_KEPT = ("seconds_left", "total_steps", "share")


class MetricsLog:
    """Appends to `path`; lines after `last_step`, which a resumed run is about to write again, are dropped
    first.
    """

    def __init__(self, path: Path, last_step: int) -> None:
        if path.exists():
            kept = [line for line in path.read_bytes().splitlines(keepends=True) if _belongs(line, last_step)]
            write_atomically(path, b"".join(kept))
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  closed by __exit__

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, event: StepEvent | EvalEvent) -> None:
        """Write one line and hand it to the operating system, so that a killed process loses none."""
        line = {"event": _KINDS[type(event)]} | dataclasses.asdict(event)
        self._file.write(json.dumps({key: value for key, value in line.items() if key not in _NOT_KEPT}) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Return once all lines are on disk."""
        os.fsync(self._file.fileno())


def read_metrics(path: Path) -> list[dict[str, object]]:
    """The lines of a run, each with `event` ("step" or "eval") and `step`; one cut short by a crash is left
    out.
    """
    lines = path.read_bytes().splitlines()
    return [entry for entry in map(_parse, lines) if entry is not None]


def _parse(line: bytes) -> dict[str, object] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("step"), int) else None


def _belongs(line: bytes, last_step: int) -> bool:
    entry = _parse(line)
    return entry is not None and line.endswith(b"\n") and int(str(entry["step"])) <= last_step
