"""The router: sigmoid scores, the best of them, and their weights; forward and backward. Formulas: csrc/parts.h."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewell.kernels.cpu.binding import address, compiled, instruction_set, needs_operator, threads
from statewell.kernels.cpu.library import operator


def route(
    x: Tensor, weight: Tensor, bias: Tensor, top_k: int, scaling: float, renormalize: bool
) -> tuple[Tensor, Tensor]:
    """As the reference, in float32."""
    logits = x @ weight.T
    arguments = (logits, bias.detach().to(logits.dtype), top_k, scaling, renormalize and top_k > 1)
    return _Route.apply(*arguments) if needs_operator(logits) else _run_forward(*arguments)[:2]


def _run_forward(
    logits: Tensor, bias: Tensor, top_k: int, scaling: float, divide: bool
) -> tuple[Tensor, Tensor, Tensor]:
    index, weight, score = _shapes_forward(logits, bias, top_k, scaling, divide)
    logits, bias, E = logits.contiguous(), bias.contiguous(), bias.shape[0]
    compiled().route_forward(
        instruction_set(),
        threads(),
        address(logits),
        address(bias),
        address(index),
        address(weight),
        address(score),
        index.numel() // top_k,
        E,
        top_k,
        scaling,
        divide,
    )
    return index, weight, score


def _shapes_forward(
    logits: Tensor, bias: Tensor, top_k: int, scaling: float, divide: bool
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (*logits.shape[:-1], top_k)
    return logits.new_empty(shape, dtype=torch.int64), logits.new_empty(shape), logits.new_empty(shape)


def _run_backward(index: Tensor, score: Tensor, dweight: Tensor, E: int, scaling: float, divide: bool) -> Tensor:
    dlogits = _shapes_backward(index, score, dweight, E, scaling, divide)
    dweight, top_k = dweight.contiguous(), index.shape[-1]
    compiled().route_backward(
        instruction_set(),
        threads(),
        address(index),
        address(score),
        address(dweight),
        address(dlogits),
        index.numel() // top_k,
        E,
        top_k,
        scaling,
        divide,
    )
    return dlogits


def _shapes_backward(index: Tensor, score: Tensor, dweight: Tensor, E: int, scaling: float, divide: bool) -> Tensor:
    return score.new_empty(*score.shape[:-1], E)


_route_forward = operator(
    "route_forward(Tensor logits, Tensor bias, int top_k, float scaling, bool divide) -> (Tensor, Tensor, Tensor)",
    _run_forward,
    _shapes_forward,
)
_route_backward = operator(
    "route_backward(Tensor index, Tensor score, Tensor dweight, int E, float scaling, bool divide) -> Tensor",
    _run_backward,
    _shapes_backward,
)


class _Route(torch.autograd.Function):
    """logits [..., E] to (index, weight) [..., k]; only the weights have a gradient."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, bias: Tensor, top_k: int, scaling: float, divide: bool
    ) -> tuple[Tensor, Tensor]:
        index, weight, score = _route_forward(logits, bias, top_k, scaling, divide)
        ctx.save_for_backward(index, score)
        ctx.E, ctx.scaling, ctx.divide = bias.shape[0], scaling, divide
        ctx.mark_non_differentiable(index)
        return index, weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _route_backward(*ctx.saved_tensors, grads[1], ctx.E, ctx.scaling, ctx.divide), None, None, None, None
