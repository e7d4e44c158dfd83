"""`bench ops`: every operation over many tokens at once, forward and with its gradients, and what memory that takes.

Results are compared before they are timed: a peer that computes something else is no peer. Start at `cases`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from statewell.bench.alternate import OURS, Case, Line, Lineup, SpeedRow, speed_row, time_lineup
from statewell.bench.footprint import extra_bytes, measurable
from statewell.bench.limits import Work
from statewell.bench.operations import OPERATIONS, Operation, Shape
from statewell.bench.peers import Many, Peer
from statewell.bench.recurrence import relative_rms
from statewell.errors import StatewellError

Answer = Callable[[], tuple[Tensor, ...]]

TOKENS, QUICK_TOKENS = (512, 2048), (64,)
HEADS, DIM = 8, 128
QUICK_HEADS, QUICK_DIM = 2, 32
ROUNDS, QUICK_ROUNDS = 7, 2
AGREE = 1e-3  # relative RMS, fp32; the exact limits are the test suite's
WITH_BACKWARD = 3  # times the forward's work, by convention: a gradient for the input and one for the weights


def cases(peers: Sequence[Peer], rounds: int | None, quick: bool) -> list[Case]:
    """Every case, in the order shown; one that no peer has a part in is timed alone. Memory is
    measured at the shorter length, where a peer needs a gigabyte already.
    """
    turns = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    made = []
    for T in QUICK_TOKENS if quick else TOKENS:
        shape = Shape(T=T, H=QUICK_HEADS if quick else HEADS, dim=QUICK_DIM if quick else DIM)
        for operation in OPERATIONS:
            chosen = [peer for peer in peers if operation.name in peer.many and peer.longest >= T]
            sides = {OURS: operation.ours, **{peer.name: peer.many[operation.name] for peer in chosen}}
            made += [
                _case(operation, shape, "forward", partial(_forward, operation, shape, sides), turns),
                _case(operation, shape, "forward+backward", partial(_training, operation, shape, sides), turns),
            ]
            if measurable() and operation.recurrent and TOKENS[0] == T:
                made.append(_memory_case(operation, shape, list(sides)))
    return made


def _case(operation: Operation, shape: Shape, what: str, prepare: Callable[[str], Lineup], rounds: int) -> Case:
    name = f"{operation.name} {what}, {shape}"
    return Case(name=name, measure=lambda: time_lineup(prepare(name), rounds))


def _forward(operation: Operation, shape: Shape, sides: dict[str, Many], name: str) -> Lineup:
    """No gradients asked for."""
    x = operation.draw(shape)

    def without_gradients(run: Many) -> Answer:
        def call() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return (run(*x),)

        return call

    runs = {side: without_gradients(run) for side, run in sides.items()}
    return _checked(name, runs, operation.work(shape))


def _training(operation: Operation, shape: Shape, sides: dict[str, Many], name: str) -> Lineup:
    """Forward, and the gradients of every tensor that has one."""
    runs = {side: forward_backward(operation, run, shape) for side, run in sides.items()}
    work = operation.work(shape)
    return _checked(name, runs, Work(amount=WITH_BACKWARD * work.amount, unit=work.unit))


def forward_backward(operation: Operation, run: Many, shape: Shape) -> Answer:
    """A call of `run` on the operation's inputs that answers with its result and every gradient from a random one."""
    x = [part.requires_grad_(part.is_floating_point()) for part in operation.draw(shape)]
    leaves = [part for part in x if part.requires_grad]
    weights = torch.randn(x[operation.like].shape, generator=torch.Generator().manual_seed(9))

    def call() -> tuple[Tensor, ...]:
        o = run(*x)
        return o.detach(), *torch.autograd.grad(o, leaves, weights)

    return call


def _checked(name: str, runs: dict[str, Answer], work: Work) -> Lineup:
    """The lines of ours against every other side, once all have answered the same. Raises StatewellError."""
    expected = runs[OURS]()
    for side, run in runs.items():
        error = max(relative_rms(theirs, ours) for ours, theirs in zip(expected, run(), strict=True))
        if not error <= AGREE:
            raise StatewellError(
                f"{name}: {side} answers {error:.1e} apart from ours, {AGREE:g} is allowed; not timed."
            )
    peers = [side for side in runs if side != OURS] or [None]
    return Lineup(runs=runs, lines=[Line(name=name, run=OURS, peer=peer, work=work) for peer in peers])


def _memory_case(operation: Operation, shape: Shape, sides: list[str]) -> Case:
    name = f"{operation.name} forward+backward, {shape}: memory beyond its inputs"

    def measure() -> list[SpeedRow]:
        taken = {side: [extra_bytes(operation.name, side, shape) / 2**20] for side in sides}
        peers = [side for side in sides if side != OURS]
        if not peers:
            return [speed_row(name, "MiB", taken[OURS])]
        return [speed_row(name, "MiB", taken[OURS], peer, taken[peer]) for peer in peers]

    return Case(name=name, measure=measure)
