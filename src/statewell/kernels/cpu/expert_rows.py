"""Rows of tokens moved to the order of the experts and back, forward and backward. Formulas: csrc/parts.h."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewell.kernels.cpu.binding import address, compiled, instruction_set, threads
from statewell.kernels.cpu.library import operator


def _run_order(index: Tensor, E: int) -> tuple[Tensor, Tensor, Tensor]:
    order, place, counts = _shapes_order(index, E)
    index = index.contiguous()
    compiled().expert_order(
        instruction_set(), address(index), address(order), address(place), address(counts), order.numel(), E
    )
    return order, place, counts


def _shapes_order(index: Tensor, E: int) -> tuple[Tensor, Tensor, Tensor]:
    return index.new_empty(index.numel()), index.new_empty(index.shape), index.new_empty(E)


def _run_spread(x: Tensor, order: Tensor, place: Tensor) -> Tensor:
    x, k = x.contiguous(), place.shape[1]
    rows = _shapes_spread(x, order, place)
    compiled().expert_spread(
        instruction_set(), threads(), address(x), address(order), address(rows), len(x), k, x.shape[1]
    )
    return rows


def _shapes_spread(x: Tensor, order: Tensor, place: Tensor) -> Tensor:
    return x.new_empty(order.shape[0], x.shape[1])


def _run_gather(drows: Tensor, place: Tensor) -> Tensor:
    drows, dx = drows.contiguous(), _shapes_gather(drows, place)
    compiled().expert_gather(
        instruction_set(), threads(), address(drows), address(place), address(dx), *place.shape, drows.shape[1]
    )
    return dx


def _shapes_gather(drows: Tensor, place: Tensor) -> Tensor:
    return drows.new_empty(place.shape[0], drows.shape[1])


def _run_combine(rows: Tensor, weight: Tensor, place: Tensor) -> Tensor:
    rows, weight, mixed = rows.contiguous(), weight.contiguous(), _shapes_gather(rows, place)
    compiled().expert_combine(
        instruction_set(),
        threads(),
        address(rows),
        address(weight),
        address(place),
        address(mixed),
        *place.shape,
        rows.shape[1],
    )
    return mixed


def _run_combine_backward(rows: Tensor, weight: Tensor, place: Tensor, dmixed: Tensor) -> tuple[Tensor, Tensor]:
    drows, dweight = _shapes_combine_backward(rows, weight, place, dmixed)
    rows, weight, dmixed = rows.contiguous(), weight.contiguous(), dmixed.contiguous()
    compiled().expert_combine_backward(
        instruction_set(),
        threads(),
        address(rows),
        address(weight),
        address(place),
        address(dmixed),
        address(drows),
        address(dweight),
        *place.shape,
        rows.shape[1],
    )
    return drows, dweight


def _shapes_combine_backward(rows: Tensor, weight: Tensor, place: Tensor, dmixed: Tensor) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.shape), weight.new_empty(weight.shape)


expert_order = operator("expert_order(Tensor index, int E) -> (Tensor, Tensor, Tensor)", _run_order, _shapes_order)
_expert_spread = operator("expert_spread(Tensor x, Tensor order, Tensor place) -> Tensor", _run_spread, _shapes_spread)
_expert_gather = operator("expert_gather(Tensor drows, Tensor place) -> Tensor", _run_gather, _shapes_gather)
_expert_combine = operator(
    "expert_combine(Tensor rows, Tensor weight, Tensor place) -> Tensor",
    _run_combine,
    lambda rows, weight, place: _shapes_gather(rows, place),
)
_expert_combine_backward = operator(
    "expert_combine_backward(Tensor rows, Tensor weight, Tensor place, Tensor dmixed) -> (Tensor, Tensor)",
    _run_combine_backward,
    _shapes_combine_backward,
)


class Spread(torch.autograd.Function):
    """x [M, D] to [M*k, D], token order[i] // k in row i; place [M, k] says where each copy went."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return _expert_spread(x, order, place)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _expert_gather(grads[0], *ctx.saved_tensors), None, None


class Combine(torch.autograd.Function):
    """sum_k weight[:, k] * rows[place[:, k]]: rows [M*k, D], weight and place [M, k]; returns [M, D]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight, place)
        return _expert_combine(rows, weight, place)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_expert_combine_backward(*ctx.saved_tensors, grads[0]), None
