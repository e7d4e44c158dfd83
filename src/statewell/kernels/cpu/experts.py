"""The routed experts: rows sorted, spread and summed by `expert_rows`, one product per expert by torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewell.kernels.cpu.expert_rows import Combine, Spread, expert_order


def experts(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    w1: Tensor,
    w3: Tensor,
    w2: Tensor,
    activation: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """As the reference, in float32: one product per expert and matrix, the rows moved once each way."""
    order, place, counts = expert_order(index, w1.shape[0])
    spans = _spans(counts.tolist())
    rows = Spread.apply(x, order, place)  # [M*k, Din]
    hidden = activation(*_Pair.apply(rows, w1, w3, spans))
    return Combine.apply(_Grouped.apply(hidden, w2, spans), weight, place)


Span = tuple[int, int, int]  # an expert that has rows, its first row, the row past its last


def _spans(counts: list[int]) -> list[Span]:
    spans, start = [], 0
    for e, count in enumerate(counts):
        if count:
            spans.append((e, start, start + count))
        start += count
    return spans


class _Pair(torch.autograd.Function):
    """rows @ w1[e]^T and rows @ w3[e]^T for the rows of each expert; one gradient of the rows for both."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, w1: Tensor, w3: Tensor, spans: list[Span]) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(rows, w1, w3)
        ctx.spans = spans
        return _products(rows, w1, spans), _products(rows, w3, spans)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, w1, w3 = ctx.saved_tensors
        dgate, dup = (d.contiguous() for d in grads)
        drows = None
        if ctx.needs_input_grad[0]:
            drows = torch.empty_like(rows)
            for e, start, end in ctx.spans:
                part = drows[start:end]
                torch.mm(dgate[start:end], w1[e], out=part)
                part.addmm_(dup[start:end], w3[e])
        dw1 = _weight_gradient(dgate, rows, w1, ctx.spans) if ctx.needs_input_grad[1] else None
        dw3 = _weight_gradient(dup, rows, w3, ctx.spans) if ctx.needs_input_grad[2] else None
        return drows, dw1, dw3, None


class _Grouped(torch.autograd.Function):
    """rows @ weight[e]^T for the rows of each expert."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, spans: list[Span]) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.spans = spans
        return _products(rows, weight, spans)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        dmade = grads[0].contiguous()
        drows = None
        if ctx.needs_input_grad[0]:
            drows = torch.empty_like(rows)
            for e, start, end in ctx.spans:
                torch.mm(dmade[start:end], weight[e], out=drows[start:end])
        dweight = _weight_gradient(dmade, rows, weight, ctx.spans) if ctx.needs_input_grad[1] else None
        return drows, dweight, None


def _products(rows: Tensor, weight: Tensor, spans: list[Span]) -> Tensor:
    made = rows.new_empty(rows.shape[0], weight.shape[1])
    for e, start, end in spans:
        torch.mm(rows[start:end], weight[e].T, out=made[start:end])
    return made


def _weight_gradient(dmade: Tensor, rows: Tensor, weight: Tensor, spans: list[Span]) -> Tensor:
    """Zero for an expert without rows."""
    whole = len(spans) == weight.shape[0]
    dweight = weight.new_empty(weight.shape) if whole else weight.new_zeros(weight.shape)
    for e, start, end in spans:
        torch.mm(dmade[start:end].T, rows[start:end], out=dweight[e])
    return dweight
