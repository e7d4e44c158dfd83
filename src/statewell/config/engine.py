"""How a process serves: how many conversations at a time, in how many bytes; and where it keeps saved ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from statewell.config.checks import require_positive
from statewell.config.memory import PAGE
from statewell.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """rows: conversations at a time. memory_budget: bytes that all their memory together may take, with what is kept
    for reuse; None sets no limit. prefill_chunk: prompt tokens read between two steps of those that are running.
    state_every: a prompt's state is kept for reuse each time it holds a multiple of this.
    """

    rows: int = 16
    memory_budget: int | None = None
    prefill_chunk: int = 256
    state_every: int = PAGE

    def __post_init__(self) -> None:
        require_positive(self, "rows", "prefill_chunk", "state_every")
        if self.memory_budget is not None and self.memory_budget < 1:
            raise ConfigError(f"EngineConfig.memory_budget is {self.memory_budget}; give at least 1 byte, or None.")


def sessions_folder() -> Path:
    """Where sessions are saved by default: statewell/sessions under XDG_DATA_HOME, else under ~/.local/share."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "statewell" / "sessions"
