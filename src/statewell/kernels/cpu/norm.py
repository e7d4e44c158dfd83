"""Norms of the last axis: l2, RMS, and RMS under a gate; one pass forward, one backward. Formulas: csrc/parts.h."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewell.kernels.cpu.binding import address, compiled, instruction_set, needs_operator, threads
from statewell.kernels.cpu.library import operator


def l2norm(x: Tensor, eps: float) -> Tensor:
    """As the reference, in float32."""
    return _norm(x, None, None, 1.0, eps, False)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As the reference, in float32."""
    return _norm(x, weight, None, 1 / x.shape[-1], eps, False)


def gated_rms_norm(
    x: Tensor, weight: Tensor, gate: Tensor, eps: float, activation: Callable[[Tensor], Tensor]
) -> Tensor:
    """As the reference, in float32; an activation other than the sigmoid and SiLU is applied by itself."""
    if activation is torch.sigmoid or activation is F.silu:
        return _norm(x, weight, gate, 1 / x.shape[-1], eps, activation is F.silu)
    return rms_norm(x, weight, eps) * activation(gate)


def _norm(x: Tensor, weight: Tensor | None, gate: Tensor | None, share: float, eps: float, silu: bool) -> Tensor:
    if needs_operator(x, weight, gate):
        return _Norm.apply(x, weight, gate, share, eps, silu)
    return _forward(x, weight, gate, share, eps, silu)[0]


def _forward(
    x: Tensor, weight: Tensor | None, gate: Tensor | None, share: float, eps: float, silu: bool
) -> tuple[Tensor, Tensor]:
    y, factor = _shapes_forward(x, weight, gate, share, eps, silu)
    x = x.contiguous()
    weight, gate = (None if t is None else t.contiguous() for t in (weight, gate))
    compiled().norm_forward(
        instruction_set(),
        threads(),
        address(x),
        address(weight),
        address(gate),
        address(y),
        address(factor),
        factor.numel(),
        x.shape[-1],
        share,
        eps,
        silu,
    )
    return y, factor


def _shapes_forward(
    x: Tensor, weight: Tensor | None, gate: Tensor | None, share: float, eps: float, silu: bool
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1])


def _backward(
    x: Tensor, weight: Tensor | None, gate: Tensor | None, factor: Tensor, dy: Tensor, share: float, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dweight, dgate = _shapes_backward(x, weight, gate, factor, dy, share, silu)
    x, dy = x.contiguous(), dy.contiguous()
    weight, gate = (None if t is None else t.contiguous() for t in (weight, gate))
    compiled().norm_backward(
        instruction_set(),
        threads(),
        address(x),
        address(weight),
        address(gate),
        address(factor),
        address(dy),
        address(dx),
        address(dweight),
        address(dgate),
        factor.numel(),
        x.shape[-1],
        share,
        silu,
    )
    return dx, dweight, dgate


def _shapes_backward(
    x: Tensor, weight: Tensor | None, gate: Tensor | None, factor: Tensor, dy: Tensor, share: float, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dweight, dgate = (x.new_empty(0) if t is None else x.new_empty(t.shape) for t in (weight, gate))
    return x.new_empty(x.shape), dweight, dgate


_norm_forward = operator(
    "norm_forward(Tensor x, Tensor? weight, Tensor? gate, float share, float eps, bool silu) -> (Tensor, Tensor)",
    _forward,
    _shapes_forward,
)
_norm_backward = operator(
    "norm_backward(Tensor x, Tensor? weight, Tensor? gate, Tensor factor, Tensor dy, float share, bool silu)"
    " -> (Tensor, Tensor, Tensor)",
    _backward,
    _shapes_backward,
)


class _Norm(torch.autograd.Function):
    """x [..., D] under weight [D] or None and gate [..., D] or None; keeps its inputs and one number a row."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, gate: Tensor | None, share: float, eps: float, silu: bool
    ) -> Tensor:
        y, factor = _norm_forward(x, weight, gate, share, eps, silu)
        ctx.save_for_backward(x, weight, gate, factor)
        ctx.share, ctx.silu = share, silu
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gate, factor = ctx.saved_tensors
        dx, dweight, dgate = _norm_backward(x, weight, gate, factor, grads[0], ctx.share, ctx.silu)
        return dx, None if weight is None else dweight, None if gate is None else dgate, None, None, None
