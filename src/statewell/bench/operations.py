"""The operations that `bench ops` times: how each is called, seeded inputs for it, and how much work it is.

Knows neither peers nor clocks. Start at `OPERATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import elu, normalize

from statewell.bench.limits import BYTES, FLOPS, Work
from statewell.kernels import ops

EPS = 1e-5  # of every norm that is timed
TAPS = 4
SOURCES = 4  # of an attention residual
EXPERTS, TOP_K = 16, 2
FP32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One row of T tokens with H heads of K = V = `dim`; what has no heads is H * dim wide."""

    T: int
    H: int
    dim: int

    @property
    def width(self) -> int:
        """D, the channels of all heads."""
        return self.H * self.dim

    def __str__(self) -> str:
        return f"T={self.T:,} H={self.H} K=V={self.dim}"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One of `sw.ops`. ours: its tensors -> o. draw: those tensors, float32, the same every time. work: of a forward.

    like: which of the tensors has the shape of o. recurrent: one of the memories that carry a matrix, for which extra
    memory is measured too.
    """

    name: str
    ours: Callable[..., Tensor]
    draw: Callable[[Shape], tuple[Tensor, ...]]
    work: Callable[[Shape], Work]
    like: int = 2
    recurrent: bool = False


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _heads(shape: Shape, seed: int) -> Tensor:
    return _normal(1, shape.T, shape.H, shape.dim, seed=seed)


def _additive(shape: Shape) -> tuple[Tensor, ...]:
    """q, k through the feature map, v."""
    q, k = (elu(_heads(shape, seed)) + 1 for seed in (0, 1))
    return q, k, _heads(shape, 2)


def _corrective(shape: Shape) -> tuple[Tensor, ...]:
    """q, k of unit length, v, beta in (0, 1)."""
    q, k = (normalize(_heads(shape, seed), dim=-1) for seed in (0, 1))
    return q, k, _heads(shape, 2), _normal(1, shape.T, shape.H, seed=4).sigmoid()


def _gated(shape: Shape) -> tuple[Tensor, ...]:
    """As `_corrective`, with g by head."""
    q, k, v, beta = _corrective(shape)
    return q, k, v, -_normal(1, shape.T, shape.H, seed=3).sigmoid(), beta


def _key_decay(shape: Shape) -> tuple[Tensor, ...]:
    """As `_corrective`, with g by key channel."""
    q, k, v, beta = _corrective(shape)
    return q, k, v, -_heads(shape, 3).sigmoid(), beta


def _attended(shape: Shape) -> tuple[Tensor, ...]:
    q, k, v = (_heads(shape, seed) for seed in range(3))
    return q, k, v


def _convolved(shape: Shape) -> tuple[Tensor, ...]:
    return _normal(1, shape.T, shape.width), _normal(shape.width, TAPS, seed=1)


def _normed(shape: Shape) -> tuple[Tensor, ...]:
    return _heads(shape, 0), _normal(shape.dim, seed=1)


def _gate_normed(shape: Shape) -> tuple[Tensor, ...]:
    return *_normed(shape), _heads(shape, 2)


def _depth(shape: Shape) -> tuple[Tensor, ...]:
    """The norm's and the projection's weight, then the sources."""
    weights = (_normal(shape.width, seed=seed) for seed in (0, 1))
    return *weights, *(_normal(shape.T, shape.width, seed=2 + source) for source in range(SOURCES))


def _routed(shape: Shape) -> tuple[Tensor, ...]:
    """x, the chosen experts, their weights, and w1, w3, w2 of experts as wide as a head."""
    D, width = shape.width, shape.dim
    scores = _normal(shape.T, EXPERTS, seed=1).sigmoid()
    weight, index = scores.topk(TOP_K, dim=-1)
    w1, w3 = (_normal(EXPERTS, width, D, seed=seed) * D**-0.5 for seed in (2, 3))
    return _normal(shape.T, D), index, weight, w1, w3, _normal(EXPERTS, D, width, seed=4) * width**-0.5


def matrix_work(per_cell: int) -> Callable[[Shape], Work]:
    """Operations on every cell of a [K, V] state, per token and head, as `plan/flops.py` counts them."""
    return lambda shape: Work(amount=per_cell * shape.T * shape.H * shape.dim**2, unit=FLOPS)


def _attention_work(shape: Shape) -> Work:
    """Scores and weighted sums over the earlier tokens and the own one."""
    return Work(amount=4 * shape.width * shape.T * (shape.T + 1) / 2, unit=FLOPS)


def _passes(count: int) -> Callable[[Shape], Work]:
    """So many [T, D] tensors read or written."""
    return lambda shape: Work(amount=count * FP32_BYTES * shape.T * shape.width, unit=BYTES)


def _experts_work(shape: Shape) -> Work:
    """Three products a token and chosen expert."""
    return Work(amount=6 * shape.T * TOP_K * shape.width * shape.dim, unit=FLOPS)


OPERATIONS = (
    Operation(
        name="linear",
        ours=lambda *x: ops.linear(*x)[0],
        draw=_additive,
        work=matrix_work(4),
        recurrent=True,
    ),
    Operation(
        name="delta",
        ours=lambda *x: ops.delta(*x)[0],
        draw=_corrective,
        work=matrix_work(6),
        recurrent=True,
    ),
    Operation(
        name="gated_delta",
        ours=lambda *x: ops.gated_delta(*x)[0],
        draw=_gated,
        work=matrix_work(7),
        recurrent=True,
    ),
    Operation(
        name="kda",
        ours=lambda *x: ops.kda(*x)[0],
        draw=_key_decay,
        work=matrix_work(7),
        recurrent=True,
    ),
    Operation(name="attention", ours=ops.attention, draw=_attended, work=_attention_work),
    Operation(
        name="short_conv",
        ours=lambda x, weight: ops.short_conv(x, weight)[0],
        draw=_convolved,
        work=_passes(2),
        like=0,
    ),
    Operation(
        name="rms_norm",
        ours=lambda x, weight: ops.rms_norm(x, weight, EPS),
        draw=_normed,
        work=_passes(2),
        like=0,
    ),
    Operation(
        name="gated_rms_norm",
        ours=lambda x, weight, gate: ops.gated_rms_norm(x, weight, gate, EPS, torch.sigmoid),
        draw=_gate_normed,
        work=_passes(3),
        like=0,
    ),
    Operation(
        name="attn_res",
        ours=lambda norm_weight, proj_weight, *sources: ops.attn_res(sources, norm_weight, proj_weight, EPS),
        draw=_depth,
        work=_passes(SOURCES + 1),
    ),
    Operation(
        name="experts",
        ours=lambda *x: ops.experts(*x, activation=ops.swiglu),
        draw=_routed,
        work=_experts_work,
        like=0,
    ),
)
BY_NAME = {operation.name: operation for operation in OPERATIONS}
