"""What a training run tells whoever watches it, as values. The command line draws them, `compare` collects
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class NoticeEvent:
    """Something to know that stops nothing: what the text is made of, an old state that was used instead of a
    damaged one.
    """

    message: str


@dataclass(frozen=True, kw_only=True)
class StepEvent:
    """One optimiser step is done.

    share: of the budget spent, 0 to 1. tokens: since the run began. loss: nats per token of this step's
    batch. tokens_per_s: over the last steps. seconds_left: at the pace of this process so far, evaluations
    included.
    """

    step: int
    total_steps: int | None
    share: float
    tokens: int
    loss: float
    gradient_norm: float
    learning_rate: float
    tokens_per_s: float
    elapsed_s: float
    seconds_left: float


@dataclass(frozen=True, kw_only=True)
class EvalEvent:
    """The held-out text was evaluated, windows of the training length from empty memory."""

    step: int
    tokens: int
    val_bits_per_byte: float


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent:
    """The whole run state up to `step` is on disk at `path`."""

    step: int
    path: Path


Event = NoticeEvent | StepEvent | EvalEvent | CheckpointEvent
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Watch nothing."""
