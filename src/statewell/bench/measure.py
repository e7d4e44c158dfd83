"""What one more token costs a model at a given context: seconds, and bytes that its memory really holds.

The memory is filled with seeded random rows rather than by reading that many tokens: a step's work does not
depend on the values. Knows nothing about training. Start with `measure`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from statewell.bench.results import TimePoint
from statewell.config.layers import ModelConfig
from statewell.errors import StatewellError
from statewell.memory.model import ModelMemory
from statewell.models import LanguageModel
from statewell.plan import plan

TIME_CONTEXTS = (256, 1_024, 4_096, 16_384, 32_768)
WARM_UP = 4
STEPS = 15
ROUNDS = 3
# a CPU keeps caches and states in fp32
CACHE_DTYPE = STATE_DTYPE = "fp32"
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """times: one point for each context asked for. bytes: what the memory held, for each context that was
    run.
    """

    times: list[TimePoint]
    bytes: dict[int, int]

    @property
    def tokens_per_s(self) -> float | None:
        """Steps per second at the shortest context that was run; None when none was."""
        seconds = [point["seconds"] for point in self.times if point["seconds"] is not None]
        return 1 / seconds[0] if seconds else None


def measure(
    model: LanguageModel,
    contexts: Sequence[int] = TIME_CONTEXTS,
    steps: int = STEPS,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Run `model` on one sequence at each of `contexts` within its limit.

    Args:
        contexts: tokens held after the last step, ascending. steps: timed ones in a round; the median of all is taken.
        rounds: over all contexts, so that a busy moment of the machine falls on all of them, not on one.
        clock: seconds, increasing.
    Errors: StatewellError when the memory does not hold the bytes that were planned, to the byte.
    """
    limit = model.config.context
    run = [context for context in contexts if limit is None or context <= limit]
    taken: dict[int, list[float]] = {context: [] for context in run}
    held: dict[int, int] = {}
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for _ in range(rounds):
            for context in run:
                seconds, held[context] = _run(model, context, min(steps, context), clock)
                taken[context] += seconds
    model.train(was_training)
    return Measured(times=[_point(context, taken.get(context), limit) for context in contexts], bytes=held)


def _point(context: int, taken: list[float] | None, limit: int | None) -> TimePoint:
    if taken is None:
        return {"context": context, "seconds": None, "note": f"past its {limit:,} positions"}
    return {"context": context, "seconds": statistics.median(taken), "note": None}


def _run(model: LanguageModel, context: int, steps: int, clock: Callable[[], float]) -> tuple[list[float], int]:
    """Seconds of each of the `steps` steps that end at `context` tokens, and the bytes held then."""
    warm_up = min(WARM_UP, context - steps)
    memory = model.new_memory(1, capacity=context)
    memory.fill_random([context - steps - warm_up], SEED)
    ids = torch.randint(model.config.vocab, (steps + warm_up, 1, 1), generator=torch.Generator().manual_seed(SEED))
    taken = []
    for token in ids.to(next(model.parameters()).device):
        began = clock()
        model(token, memory)
        taken.append(clock() - began)
    return taken[warm_up:], _held_bytes(model, memory, context)


def _held_bytes(model: LanguageModel, memory: ModelMemory, context: int) -> int:
    """Bytes of the tensors that hold `context` tokens, which must be what was planned and what `used` says."""
    planned = planned_bytes(model.config, context)
    held = sum(tensor.nbytes for tensor in memory.snapshot().tensors.values())
    if not held == memory.used() == planned:
        raise StatewellError(
            f"{model.config.name} holds {held:,} bytes at {context:,} tokens, says it uses {memory.used():,} and "
            f"was planned at {planned:,}; these must agree, please report this with the output of statewell doctor."
        )
    return held


def planned_bytes(config: ModelConfig, context: int) -> int:
    """What the plan says one sequence of `context` tokens needs here, also past the model's limit."""
    planned = plan(config, context=context, cache_dtype=CACHE_DTYPE, state_dtype=STATE_DTYPE)
    return planned.memory.used_bytes
