"""How long each architecture of a comparison trains: the same number of tokens for all, whatever was asked
for.

Minutes are turned into tokens by timing a few steps of every architecture first; never by stopping each at
its own time, which would give the fast ones more text. Start with `train_config`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from statewell.config.layers import ModelConfig
from statewell.config.run import TrainConfig, train_defaults
from statewell.errors import RequestError
from statewell.models import build, no_decay
from statewell.train.loss import mean_nats
from statewell.train.optim import build_optimizer

QUICK_TOKENS = 307_200
DEFAULT_TOKENS = 1_536_000
# for every size: at so few tokens more steps matter more than wider ones (GPT-2 nano after 204,800 tokens, 4 rows
# against 8: 3.88 against 4.05 bits)
ROWS = 4
HELD_OUT_POINTS = 10
# of the minutes asked for; the rest goes into evaluating, measuring and writing
TRAINING_SHARE = 0.75
FEWEST_STEPS = 20
WARM_UP, TIMED = 1, 3


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """A comparison as asked for.

    archs: none means all. seeds: runs per architecture. match: "active" or "total". quick: a fifth of the
    default tokens. minutes: about how long all of it may take instead. data: text, none for the standard
    library. command: as typed, for the report. Raises RequestError for values that cannot be.
    """

    archs: tuple[str, ...] = ()
    size: str = "nano"
    seeds: int = 1
    match: str = "active"
    quick: bool = False
    minutes: float | None = None
    data: tuple[Path, ...] = ()
    command: str = "statewell compare"

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise RequestError(f"--seeds is {self.seeds}; a comparison takes 1 or more.")
        if self.minutes is not None and not (self.minutes > 0 and math.isfinite(self.minutes)):
            raise RequestError(f"--minutes is {self.minutes:g}; it must be more than 0 and finite.")
        if self.quick and self.minutes is not None:
            raise RequestError("--quick and --minutes both set how long to train; leave one of them out.")


def train_config(request: CompareRequest, configs: Sequence[ModelConfig], tokens: int | None = None) -> TrainConfig:
    """The training all runs share, seed apart. tokens: what an earlier turn at this comparison settled on.

    Errors: RequestError when the minutes allow too few steps.
    """
    base = replace(train_defaults(request.size), rows=ROWS)
    if tokens is None and request.minutes is not None:
        steps = affordable_steps(configs, base, request.seeds, request.minutes)
    else:
        wanted = tokens or (QUICK_TOKENS if request.quick else DEFAULT_TOKENS)
        steps = math.ceil(wanted / base.tokens_per_step)
    every = max(1, steps // HELD_OUT_POINTS)
    return replace(base, steps=steps, minutes=None, eval_every=every, eval_tokens=16_384, checkpoint_every=every)


def affordable_steps(
    configs: Sequence[ModelConfig],
    train: TrainConfig,
    seeds: int,
    minutes: float,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Steps that every one of `configs` can take, `seeds` times, in three quarters of `minutes` here.

    Errors: RequestError when that is fewer than 20.
    """
    seconds = seeds * sum(step_seconds(config, train, clock) for config in configs)
    steps = int(60 * minutes * TRAINING_SHARE / seconds)
    if steps < FEWEST_STEPS:
        least = math.ceil(FEWEST_STEPS * seconds / (6 * TRAINING_SHARE)) / 10
        raise RequestError(
            f"--minutes {minutes:g} is enough for {steps} steps each and {FEWEST_STEPS} is the least; give at least "
            f"--minutes {least:g}, or fewer --archs or --seeds."
        )
    return steps


def step_seconds(config: ModelConfig, train: TrainConfig, clock: Callable[[], float]) -> float:
    """Seconds of one training step of a fresh model on random tokens, the shortest of three."""
    model = build(config, seed=0)
    optimizer = build_optimizer(model, no_decay(model), train)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocab, (train.rows, train.length + 1), generator=generator)
    taken = []
    for _ in range(WARM_UP + TIMED):
        began = clock()
        loss = mean_nats(model(ids[:, :-1]), ids[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        taken.append(clock() - began)
    return min(taken[WARM_UP:])
