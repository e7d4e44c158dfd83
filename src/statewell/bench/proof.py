"""The proof that this installation computes what it says, on this machine: `statewell doctor` runs it.

For each architecture at nano, with random weights in float64 (rounding hides no mistake, and no router's
choice flips on it), five claims are checked. A claim that fails is a row with its error. Start at `prove`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from statewell import architectures
from statewell.bench.recurrence import distance_of, relative_rms
from statewell.errors import StatewellError
from statewell.models import build
from statewell.plan import plan

if TYPE_CHECKING:
    from statewell.memory.model import ModelMemory
    from statewell.models.backbone import LanguageModel

# Relative RMS in float64, of a whole model and of one operation: the limits of the test suite.
MODEL_LIMIT = 1e-10
OPERATION_LIMIT = 1e-12
ROWS = 2
TOKENS = 150  # two whole chunks of 64 and part of a third; past one page of 128


@dataclass(frozen=True, kw_only=True)
class Proof:
    """One claim about one architecture.

    error: relative RMS, or bytes where the claim is about bytes; None when it could not be measured, with the
    reason. limit: the largest error that is `ok`.
    """

    name: str
    architecture: str
    ok: bool
    error: float | None
    limit: float
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is checked: `measure` gives the error of a model on `ids` [B, T], which may be at most `limit`."""

    name: str
    limit: float
    measure: Callable[[LanguageModel, Tensor], float]


def prove(names: Sequence[str] = tuple(architectures.ARCHITECTURES)) -> Iterator[Proof]:
    """Check every claim for every architecture of `names`, a row at a time."""
    for name in names:
        model = build(architectures.resolve(f"{name}:nano"), seed=0, dtype=torch.float64)
        ids = torch.randint(model.config.vocab, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
        for claim in CLAIMS:
            yield check(claim, model, ids)


def count(names: Sequence[str] = tuple(architectures.ARCHITECTURES)) -> int:
    """Rows that `prove` gives."""
    return len(names) * len(CLAIMS)


def check(claim: Claim, model: LanguageModel, ids: Tensor) -> Proof:
    """Measure one claim; what statewell itself refuses, or what gives no number, fails with a reason."""
    error: float | None = None
    try:
        with torch.inference_mode():
            error = claim.measure(model, ids)
        reason = "" if math.isfinite(error) else f"the error is {error}, not a finite number"
    except StatewellError as refusal:
        reason = str(refusal)
    return Proof(
        name=claim.name,
        architecture=model.config.architecture,
        ok=not reason and error is not None and error <= claim.limit,
        error=None if reason else error,
        limit=claim.limit,
        reason=reason,
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Run on one thread inside the `with`, as many as before after it.

    Nano's products are too small to share out: beside other work on the same two cores, threads waiting for
    one another made the proof take 76 s instead of 3. The operations are still checked with all threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def causality(model: LanguageModel, ids: Tensor) -> float:
    """How far later tokens, when all of them change, move the scores at earlier positions."""
    cut = ids.shape[1] // 2
    other = ids.clone()
    other[:, cut:] = (ids[:, cut:] + 1) % model.config.vocab
    return relative_rms(model(other)[:, :cut], model(ids)[:, :cut])


@one_thread()
def split_equals_whole(model: LanguageModel, ids: Tensor) -> float:
    """How far a prompt in pieces, then token by token, is from the prompt in one pass: scores and memory."""
    B, T = ids.shape
    whole, parts = model.new_memory(B), model.new_memory(B)
    expected = model(ids, whole)
    sizes = [37, 64, 29] + [1] * (T - 130)
    actual = torch.cat([model(piece, parts) for piece in ids.split(sizes, dim=1)], dim=1)
    without_memory = relative_rms(model(ids), expected)
    return max(without_memory, relative_rms(actual, expected), apart(parts, whole))


def chunk_equals_recurrence(model: LanguageModel, ids: Tensor) -> float:
    """How far the operation of each kind of mixer is, on many tokens, from its definition token by token."""
    return max(distance_of(spec) for spec in {layer.mixer for layer in model.config.layers})


@one_thread()
def measured_equals_planned(model: LanguageModel, ids: Tensor) -> float:
    """Bytes between what the memory holds and what `plan` says, used and reserved, at several lengths."""
    B, T = ids.shape
    memory = model.new_memory(B)
    worst = 0
    for piece in ids.split([1, 127, 1, T - 129], dim=1):
        model(piece, memory)
        length = int(memory.lengths[0])
        planned = plan(model.config, context=length, rows=B, cache_dtype="fp64", state_dtype="fp64").memory
        held = sum(tensor.nbytes for tensor in memory.tensors().values())
        reserved = memory.reserved()
        pairs = (
            (memory.used(), planned.used_bytes),
            (reserved, planned.reserved_bytes),
            (reserved, held),
        )
        worst = max(worst, *(abs(measured - expected) for measured, expected in pairs))
    return worst


@one_thread()
def snapshot_restore_fork(model: LanguageModel, ids: Tensor) -> float:
    """How differently restored and forked memories go on, and how far a fork moves its parent: 0, exactly."""
    start, rest = ids.split([100, ids.shape[1] - 100], dim=1)
    parent, same = model.new_memory(ids.shape[0]), model.new_memory(ids.shape[0])
    model(start, parent)
    model(start, same)
    snapshot, child = parent.snapshot(), parent.fork()
    forked = model(rest, child)
    moved = apart(parent, same)
    went_on = model(rest, parent)
    parent.restore(snapshot)
    restored = apart(parent, same)
    again = model(rest, parent)
    return max(moved, restored, relative_rms(forked, went_on), relative_rms(again, went_on), apart(parent, child))


def apart(actual: ModelMemory, expected: ModelMemory) -> float:
    """The largest relative RMS between tensors of the same name; infinite when they hold different things."""
    ours, theirs = actual.snapshot(), expected.snapshot()
    shapes = [{name: tensor.shape for name, tensor in each.tensors.items()} for each in (ours, theirs)]
    if shapes[0] != shapes[1] or not torch.equal(actual.lengths, expected.lengths):
        return math.inf
    return max(relative_rms(tensor, theirs.tensors[name]) for name, tensor in ours.tensors.items())


CLAIMS = (
    Claim(name="causality", limit=MODEL_LIMIT, measure=causality),
    Claim(name="split_equals_whole", limit=MODEL_LIMIT, measure=split_equals_whole),
    Claim(name="chunk_equals_recurrence", limit=OPERATION_LIMIT, measure=chunk_equals_recurrence),
    Claim(name="measured_equals_planned", limit=0, measure=measured_equals_planned),
    Claim(name="snapshot_restore_fork", limit=0, measure=snapshot_restore_fork),
)
