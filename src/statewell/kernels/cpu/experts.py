"""The routed experts: rows sorted, spread and summed by `expert_rows`, one product per expert by torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewell.kernels.cpu.expert_rows import Combine, Spread, expert_order
from statewell.kernels.cpu.library import operator


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
    rows = Spread.apply(x, order, place)  # [M*k, Din]
    hidden = activation(*_Pair.apply(rows, w1, w3, counts))
    return Combine.apply(_Grouped.apply(hidden, w2, counts), weight, place)


Span = tuple[int, int, int]  # an expert that has rows, its first row, the row past its last


def _spans(counts: Tensor) -> list[Span]:
    spans, start = [], 0
    for e, count in enumerate(counts.tolist()):
        if count:
            spans.append((e, start, start + count))
        start += count
    return spans


def _run_products(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    made = _shapes_products(rows, weight, counts)
    for e, start, end in _spans(counts):
        torch.mm(rows[start:end], weight[e].T, out=made[start:end])
    return made


def _shapes_products(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1])


def _run_rows_gradient(dmade: list[Tensor], weights: list[Tensor], counts: Tensor) -> Tensor:
    drows = _shapes_rows_gradient(dmade, weights, counts)
    for e, start, end in _spans(counts):
        part = drows[start:end]
        torch.mm(dmade[0][start:end], weights[0][e], out=part)
        for d, weight in zip(dmade[1:], weights[1:], strict=True):
            part.addmm_(d[start:end], weight[e])
    return drows


def _shapes_rows_gradient(dmade: list[Tensor], weights: list[Tensor], counts: Tensor) -> Tensor:
    return dmade[0].new_empty(dmade[0].shape[0], weights[0].shape[2])


def _run_weight_gradient(dmade: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
    """Zero for an expert without rows."""
    spans, dweight = _spans(counts), _shapes_weight_gradient(dmade, rows, counts)
    if len(spans) < len(dweight):
        dweight.zero_()
    for e, start, end in spans:
        torch.mm(dmade[start:end].T, rows[start:end], out=dweight[e])
    return dweight


def _shapes_weight_gradient(dmade: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
    return rows.new_empty(counts.shape[0], dmade.shape[1], rows.shape[1])


# How many rows an expert has is known while it runs, not while it is traced: hence operators, each over all experts.
_products = operator(
    "expert_products(Tensor rows, Tensor weight, Tensor counts) -> Tensor", _run_products, _shapes_products
)
_rows_gradient = operator(
    "expert_rows_gradient(Tensor[] dmade, Tensor[] weights, Tensor counts) -> Tensor",
    _run_rows_gradient,
    _shapes_rows_gradient,
)
_weight_gradient = operator(
    "expert_weight_gradient(Tensor dmade, Tensor rows, Tensor counts) -> Tensor",
    _run_weight_gradient,
    _shapes_weight_gradient,
)


class _Pair(torch.autograd.Function):
    """rows @ w1[e]^T and rows @ w3[e]^T for the rows of each expert; one gradient of the rows for both."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, w1: Tensor, w3: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(rows, w1, w3, counts)
        return _products(rows, w1, counts), _products(rows, w3, counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, w1, w3, counts = ctx.saved_tensors
        dgate, dup = (d.contiguous() for d in grads)
        drows = _rows_gradient([dgate, dup], [w1, w3], counts) if ctx.needs_input_grad[0] else None
        dw1 = _weight_gradient(dgate, rows, counts) if ctx.needs_input_grad[1] else None
        dw3 = _weight_gradient(dup, rows, counts) if ctx.needs_input_grad[2] else None
        return drows, dw1, dw3, None


class _Grouped(torch.autograd.Function):
    """rows @ weight[e]^T for the rows of each expert."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight, counts)
        return _products(rows, weight, counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, counts = ctx.saved_tensors
        dmade = grads[0].contiguous()
        drows = _rows_gradient([dmade], [weight], counts) if ctx.needs_input_grad[0] else None
        return drows, _weight_gradient(dmade, rows, counts) if ctx.needs_input_grad[1] else None, None
