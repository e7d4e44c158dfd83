"""`bench decode`: one more token. A step of each memory by itself, then of whole models at a short and a long context.

A step goes through the memory as a model's does, state and all. Contexts are filled with seeded noise, since the work
of a step does not depend on the values. Start at `cases`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from statewell.architectures import ARCHITECTURES
from statewell.bench.alternate import OURS, WARM, Case, Line, Lineup, Run, time_lineup
from statewell.bench.limits import BYTES, FLOPS, Work
from statewell.bench.operations import BY_NAME, FP32_BYTES, Shape
from statewell.bench.peers import Peer
from statewell.bench.reach import reaching
from statewell.config.mixers import DeltaSpec, GatedDeltaSpec, KDASpec, LinearSpec
from statewell.kernels import ops
from statewell.memory.base import Memory
from statewell.memory.matrix import (
    AdditiveMemory,
    DeltaInputs,
    DeltaMemory,
    GatedDeltaInputs,
    GatedDeltaMemory,
    KeyDecayMemory,
    LinearInputs,
)
from statewell.memory.segments import Segments
from statewell.memory.store import RowStore
from statewell.models import LanguageModel, build
from statewell.plan.weights import active

ONE_TOKEN = Segments(bounds=(0, 1), rows=(0,), start=(1,))


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is. kept: tokens a step of attention looks back on. calls: steps in one timed stretch.

    latent, rope: R and P of latent attention. contexts: the short one first, which the other is compared with.
    token_rounds: of a model's token, which is short, and whose ratio between two contexts is what counts.
    """

    heads: int
    dim: int
    kept: int
    latent: int
    rope: int
    calls: int
    rounds: int
    token_rounds: int
    contexts: tuple[int, int]
    size: str


# Heads, latent and rope part are Kimi Linear's.
FULL = Scale(
    heads=32,
    dim=128,
    kept=4096,
    latent=512,
    rope=64,
    calls=50,
    rounds=15,
    token_rounds=41,
    contexts=(1_024, 131_072),
    size="small",
)
QUICK = Scale(
    heads=4, dim=32, kept=64, latent=32, rope=16, calls=2, rounds=2, token_rounds=3, contexts=(32, 256), size="nano"
)


def _linear(x: Sequence[Tensor], heads: int, dim: int) -> tuple[Memory[Any], LinearInputs]:
    spec = LinearSpec(heads=heads, key_dim=dim, value_dim=dim)
    return AdditiveMemory(_one_row(spec)), LinearInputs(*x)


def _delta(x: Sequence[Tensor], heads: int, dim: int) -> tuple[Memory[Any], DeltaInputs]:
    return DeltaMemory(_one_row(DeltaSpec(heads=heads, key_dim=dim, value_dim=dim))), DeltaInputs(*x)


def _gated_delta(x: Sequence[Tensor], heads: int, dim: int) -> tuple[Memory[Any], GatedDeltaInputs]:
    spec = GatedDeltaSpec(heads=heads, value_heads=heads, key_dim=dim, value_dim=dim)
    return GatedDeltaMemory(_one_row(spec)), GatedDeltaInputs(*x)


def _kda(x: Sequence[Tensor], heads: int, dim: int) -> tuple[Memory[Any], GatedDeltaInputs]:
    return KeyDecayMemory(_one_row(KDASpec(heads=heads, key_dim=dim, value_dim=dim))), GatedDeltaInputs(*x)


def _one_row(spec: LinearSpec | DeltaSpec | GatedDeltaSpec | KDASpec) -> RowStore:
    """A row that holds seeded noise."""
    store = RowStore(spec.memory("fp32", "fp32"), 1, torch.device("cpu"))
    store.fill_random([1], torch.Generator().manual_seed(0))
    return store


MEMORIES: Mapping[str, Callable[[Sequence[Tensor], int, int], tuple[Memory[Any], Any]]] = {
    "linear": _linear,
    "delta": _delta,
    "gated_delta": _gated_delta,
    "kda": _kda,
}


def cases(peers: Sequence[Peer], rounds: int | None, quick: bool) -> list[Case]:
    """Every case, in the order shown."""
    scale = QUICK if quick else FULL
    turns = rounds or scale.rounds
    size = f"H={scale.heads} K=V={scale.dim}"
    made = [_timed(f"{name} step, {size}", partial(_step, name, peers, scale), turns) for name in MEMORIES]
    attention = f"attention step over {scale.kept:,} tokens, {size}"
    made.append(_timed(attention, partial(_attention, peers, scale), turns))
    latent = f"latent attention step over {scale.kept:,} tokens, H={scale.heads} R={scale.latent}"
    made.append(_timed(latent, partial(_latent, scale), turns))
    for architecture in ARCHITECTURES:
        name = f"{architecture}:{scale.size}, a token"
        tokens = rounds or scale.token_rounds
        made.append(_timed(name, partial(_model, architecture, scale, tokens), tokens))
    return made


def _timed(name: str, prepare: Callable[[str], Lineup], rounds: int) -> Case:
    return Case(name=name, measure=lambda: time_lineup(prepare(name), rounds))


def _step(operation: str, peers: Sequence[Peer], scale: Scale, name: str) -> Lineup:
    """One token of one row through each side's state, which it hands on to the next step."""
    shape = Shape(T=1, H=scale.heads, dim=scale.dim)
    x = BY_NAME[operation].draw(shape)
    memory, inputs = MEMORIES[operation](x, scale.heads, scale.dim)
    state = memory.tensors()["state"].clone()
    runs: dict[str, Run] = {OURS: _without_gradients(lambda: memory.mix(inputs, ONE_TOKEN))}
    for peer in peers:
        if operation in peer.steps:
            runs[peer.name] = _without_gradients(_handing_on(partial(peer.steps[operation], *x), state))
    sides = [side for side in runs if side != OURS] or [None]
    work = BY_NAME[operation].work(shape)
    lines = [Line(name=name, run=OURS, peer=side, work=work) for side in sides]
    return Lineup(runs=runs, lines=lines, calls=scale.calls)


def _handing_on(step: Callable[..., tuple[Tensor, object]], state: object) -> Run:
    held = [state]

    def call() -> None:
        _, held[0] = step(state=held[0])

    return call


def _without_gradients(run: Run) -> Run:
    def call() -> object:
        with torch.inference_mode():
            return run()

    return call


def _attention(peers: Sequence[Peer], scale: Scale, name: str) -> Lineup:
    """One query of each head over the keys and values kept so far, which have to be read."""
    shape = Shape(T=scale.kept, H=scale.heads, dim=scale.dim)
    q, k, v = BY_NAME["attention"].draw(shape)
    q = q[:, -1:]
    sides = {OURS: ops.attention, **{peer.name: peer.many["attention"] for peer in peers if "attention" in peer.many}}
    runs: dict[str, Run] = {side: _without_gradients(partial(run, q, k, v)) for side, run in sides.items()}
    work = Work(amount=2 * FP32_BYTES * scale.kept * shape.width, unit=BYTES)
    others = [side for side in runs if side != OURS] or [None]
    return Lineup(runs=runs, lines=[Line(name=name, run=OURS, peer=side, work=work) for side in others])


def _latent(scale: Scale, name: str) -> Lineup:
    """One query of each head over the latents kept so far, in the latent space."""
    generator = torch.Generator().manual_seed(0)
    H, K, R, P, S = scale.heads, scale.dim, scale.latent, scale.rope, scale.kept
    q = torch.randn(1, 1, H, K + P, generator=generator)
    latent, rope = (torch.randn(1, S, width, generator=generator) for width in (R, P))
    up = torch.randn(H, 2 * K, R, generator=generator) * R**-0.5
    run = _without_gradients(partial(ops.mla_absorbed, q, latent, rope, up))
    work = Work(amount=2 * H * (S * (2 * R + P) + 2 * K * R), unit=FLOPS)
    return Lineup(runs={OURS: run}, lines=[Line(name=name, run=OURS, work=work)])


def _model(architecture: str, scale: Scale, rounds: int, name: str) -> Lineup:
    """One model at both contexts; the long one's peer is itself at the short one."""
    short, long = scale.contexts
    steps = rounds + WARM
    model = build(reaching(architecture, scale.size, long + steps), seed=0).eval()
    runs, lines = {}, []
    for context in (short, long):
        run, work = _next_token(model, context, steps)
        side = f"{context:,} tokens"
        runs[side] = run
        peer = None if context == short else f"{short:,} tokens"
        lines.append(Line(name=f"{name} at {side}", run=side, peer=peer, shown_as=f"at {peer}", work=work))
    return Lineup(runs=runs, lines=lines)


def _next_token(model: LanguageModel, context: int, steps: int) -> tuple[Run, Work]:
    """A step after `context` tokens, possible so many times, and the bytes it reads at least: weights and memory."""
    memory = model.new_memory(1, capacity=context + steps)
    memory.fill_random([context], 0)
    token = torch.zeros(1, 1, dtype=torch.int64)
    read = FP32_BYTES * active(model.config) + memory.used()
    return _without_gradients(lambda: model(token, memory)), Work(amount=read, unit=BYTES)
