"""What a training run IS, apart from the model and the text: batch, schedule, budget, cadences, seed.

Knows no file format (`load_run.py` reads those) and imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from statewell.errors import ConfigError

DEFAULT_STEPS = 1000
_FLOATS = ("learning_rate", "warmup", "final_rate", "weight_decay", "beta1", "beta2", "clip", "minutes")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run. The defaults suit byte-level nano models on two CPU cores; `train_defaults` has the
    other sizes.

    The budget is `steps` or `minutes`, never both; neither means DEFAULT_STEPS. Raises ConfigError for a
    value that cannot be.
    """

    rows: int = 4
    """Windows per step. From the same text, nano models learn more in many small steps than in few large ones."""
    length: int = 256
    """Tokens per window."""
    learning_rate: float = 3e-3
    """The highest rate, reached when the warm-up ends."""
    warmup: float = 0.05
    """Share of the budget over which the rate rises linearly from zero, 0 to 1."""
    final_rate: float = 0.1
    """Where the cosine ends, as a share of `learning_rate`, 0 to 1."""
    weight_decay: float = 0.1
    """AdamW's decay, on matrices only: norms, biases and gates have none."""
    beta1: float = 0.9
    """Decay of AdamW's mean of gradients."""
    beta2: float = 0.95
    """Decay of AdamW's mean of squared gradients."""
    clip: float = 1.0
    """Gradients are scaled down to this norm over all parameters."""
    steps: int | None = None
    """Optimiser steps of the whole run."""
    minutes: float | None = None
    """Wall-clock minutes of the whole run, evaluations included; the last evaluation comes on top."""
    eval_every: int = 100
    """Steps between evaluations on the held-out text."""
    eval_tokens: int = 32_768
    """Most held-out tokens in one of these evaluations."""
    final_eval_tokens: int = 131_072
    """Most held-out tokens in the evaluation that ends the run."""
    checkpoint_every: int = 100
    """Steps between saves of the whole run state; what was trained since is lost on a power cut."""
    seed: int = 0
    """Decides the initial weights and the order of the text."""
    recompute: bool = False
    """Recompute each block in backward: about a third more time for much less memory, the same losses."""

    def __post_init__(self) -> None:
        for name in _FLOATS:
            # a whole number given for a float becomes one, so that equal configs are also written equally
            if isinstance(value := getattr(self, name), int) and not isinstance(value, bool):
                object.__setattr__(self, name, float(value))
        for name in ("rows", "length", "eval_every", "eval_tokens", "final_eval_tokens", "checkpoint_every"):
            self._check(name, getattr(self, name), lowest=1, whole=True)
        self._check("seed", self.seed, lowest=0, highest=2**63 - 1, whole=True)
        for name in ("learning_rate", "clip"):
            self._check(name, getattr(self, name), above=0)
        self._check("weight_decay", self.weight_decay, lowest=0)
        for name in ("warmup", "final_rate"):
            self._check(name, getattr(self, name), lowest=0, highest=1)
        for name in ("beta1", "beta2"):
            self._check(name, getattr(self, name), lowest=0, highest=0.999999)
        if self.steps is not None:
            self._check("steps", self.steps, lowest=1, whole=True)
        if self.minutes is not None:
            self._check("minutes", self.minutes, above=0)
        if self.steps is not None and self.minutes is not None:
            raise ConfigError(
                f"The budget is steps ({self.steps}) or minutes ({self.minutes:g}), not both; remove one."
            )

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run, or None where minutes decide."""
        return None if self.minutes is not None else (self.steps or DEFAULT_STEPS)

    @property
    def tokens_per_step(self) -> int:
        return self.rows * self.length

    def _check(
        self,
        name: str,
        value: float,
        *,
        lowest: float | None = None,
        above: float | None = None,
        highest: float | None = None,
        whole: bool = False,
    ) -> None:
        limits: list[str] = []
        if lowest is not None:
            limits.append(f"at least {lowest}")
        if above is not None:
            limits.append(f"more than {above}")
        if highest is not None:
            limits.append(f"at most {highest}")
        fits = (
            math.isfinite(value)
            and not isinstance(value, bool)
            and (not whole or isinstance(value, int))
            and (lowest is None or value >= lowest)
            and (above is None or value > above)
            and (highest is None or value <= highest)
        )
        if not fits:
            kind = "a whole number" if whole else "a number"
            raise ConfigError(f"{name} = {value!r} cannot be: it is {kind}, {' and '.join(limits)}.")


# Starting points by model size; wider models want lower rates.
_BY_SIZE = {
    "nano": TrainConfig(),
    "tiny": TrainConfig(learning_rate=2e-3),
    "small": TrainConfig(learning_rate=1e-3, rows=8, length=512, checkpoint_every=50),
}


def train_defaults(size: str) -> TrainConfig:
    """The starting point for a model of `size` (nano, tiny, small); any other size has TrainConfig's own
    defaults.
    """
    return _BY_SIZE.get(size, TrainConfig())


def continued_defaults(size: str) -> TrainConfig:
    """The starting point for going on from trained weights: a tenth of the rate that suits random ones."""
    fresh = train_defaults(size)
    return replace(fresh, learning_rate=fresh.learning_rate / 10)


def changed_fields(before: TrainConfig, after: TrainConfig) -> list[str]:
    """Names of the fields in which two runs differ, in the order of the class."""
    return [f.name for f in fields(TrainConfig) if getattr(before, f.name) != getattr(after, f.name)]
