"""Attention residuals, forward and backward, over sources read in place. Formulas: csrc/parts.h."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewell.kernels.cpu.binding import address, compiled, instruction_set, needs_operator, threads
from statewell.kernels.cpu.library import operator


def attn_res(sources: Sequence[Tensor], norm_weight: Tensor, proj_weight: Tensor, eps: float) -> Tensor:
    """As the reference, in float32; keeps the sources and three numbers per token and source."""
    if len(sources) == 1:
        return sources[0]
    shape = sources[-1].shape
    rows = [v.reshape(-1, shape[-1]) for v in sources]
    query = norm_weight * proj_weight
    if needs_operator(query, *sources):
        return _Mix.apply(query, eps, *rows).view(shape)
    return _run_forward(rows, query, eps)[0].view(shape)


def _addresses(tensors: Sequence[Tensor]) -> array:
    """Addresses as C reads them; the array must live until the call returns."""
    return array("Q", [address(tensor) for tensor in tensors])


def _run_forward(sources: list[Tensor], query: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mixed, r, d, a = _shapes_forward(sources, query, eps)
    sources, query = [v.contiguous() for v in sources], query.contiguous()
    places = _addresses(sources)
    compiled().depth_forward(
        instruction_set(),
        threads(),
        places.buffer_info()[0],
        address(query),
        address(mixed),
        address(r),
        address(d),
        address(a),
        len(sources),
        *mixed.shape,
        eps,
    )
    return mixed, r, d, a


def _shapes_forward(sources: list[Tensor], query: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (M, D), S = sources[0].shape, len(sources)
    return query.new_empty(M, D), query.new_empty(M, S), query.new_empty(M, S), query.new_empty(M, S)


def _run_backward(
    sources: list[Tensor], query: Tensor, r: Tensor, d: Tensor, a: Tensor, dmixed: Tensor
) -> tuple[list[Tensor], Tensor]:
    dsources, dquery = _shapes_backward(sources, query, r, d, a, dmixed)
    sources, query, dmixed = [v.contiguous() for v in sources], query.contiguous(), dmixed.contiguous()
    places, dplaces = _addresses(sources), _addresses(dsources)
    compiled().depth_backward(
        instruction_set(),
        threads(),
        places.buffer_info()[0],
        address(query),
        address(r),
        address(d),
        address(a),
        address(dmixed),
        dplaces.buffer_info()[0],
        address(dquery),
        len(sources),
        *dmixed.shape,
    )
    return dsources, dquery


def _shapes_backward(
    sources: list[Tensor], query: Tensor, r: Tensor, d: Tensor, a: Tensor, dmixed: Tensor
) -> tuple[list[Tensor], Tensor]:
    return [v.new_empty(v.shape) for v in sources], query.new_empty(query.shape)


_depth_forward = operator(
    "depth_forward(Tensor[] sources, Tensor query, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
    _run_forward,
    _shapes_forward,
)
_depth_backward = operator(
    "depth_backward(Tensor[] sources, Tensor query, Tensor r, Tensor d, Tensor a, Tensor dmixed) -> (Tensor[], Tensor)",
    _run_backward,
    _shapes_backward,
)


class _Mix(torch.autograd.Function):
    """Sources [M, D] under query [D]; returns [M, D]."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, eps: float, *sources: Tensor) -> Tensor:
        mixed, r, d, a = _depth_forward(sources, query, eps)
        ctx.save_for_backward(query, r, d, a, *sources)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, r, d, a, *sources = ctx.saved_tensors
        dsources, dquery = _depth_backward(sources, query, r, d, a, grads[0])
        return dquery, None, *dsources
