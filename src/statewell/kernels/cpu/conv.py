"""The short causal convolution, forward and backward, over rows or packed segments. Formulas: csrc/parts.h."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewell.kernels.cpu.binding import (
    address,
    compiled,
    instruction_set,
    laid_out,
    needs_operator,
    segment_bounds,
    threads,
)
from statewell.kernels.cpu.library import operator
from statewell.kernels.reference.conv import last_inputs
from statewell.kernels.reference.in_place import continued

TAPS = range(2, 5)  # W that is compiled


def refusal(dims: tuple[int, ...]) -> str | None:
    """Why a convolution of D channels and W taps can not run here; no widths, no refusal."""
    if len(dims) < 2 or dims[1] in TAPS:
        return None
    return f"its convolution has {TAPS[0]} to {TAPS[-1]} taps, this one {dims[1]}"


def short_conv(x: Tensor, weight: Tensor, state: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    """As the reference, in float32 and bit for bit its outputs; the taps' gradient is summed in another order."""
    bounds = segment_bounds(x, cu_seqlens)
    if state is None:
        state = x.new_zeros(len(bounds) - 1, weight.shape[1] - 1, x.shape[2])
    run = _Conv.apply if needs_operator(x, weight, state) else _run_forward
    return run(x, weight, state, bounds), _newest(x, state, bounds, cu_seqlens)


def short_conv_step_(x: Tensor, weight: Tensor, state: Tensor, rows: Tensor | None) -> Tensor:
    """One token of each of the rows, bit for bit the reference's; the tails move on where they lie."""
    if needs_operator(x, weight):
        y = continued(lambda held: short_conv(x[:, None], weight, held, None), state, rows)
        return y[:, 0]
    (N, D), W = x.shape, weight.shape[1]
    y = x.new_empty(N, D)
    (x, x_step), weight = laid_out(x, 1), weight.contiguous()
    rows = None if rows is None else rows.contiguous()
    compiled().conv_step(
        instruction_set(), threads(), x.data_ptr(), x_step, weight.data_ptr(), state.data_ptr(), address(rows),
        y.data_ptr(), N, D, W,
    )  # fmt: skip
    return y


def _newest(x: Tensor, state: Tensor, bounds: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The newest W-1 of (state, then x) of every row or segment, as a tensor of its own."""
    if cu_seqlens is None:
        return last_inputs(x, state)
    if x.shape[1] == 0:
        return state.clone()
    kept = state.shape[1]
    starts, ends = bounds[:-1, None], bounds[1:, None]
    places = ends + torch.arange(-kept, 0)  # [N, W-1], of the tokens in x
    newest = x[0].index_select(0, places.clamp_min(0).flatten()).view(state.shape)
    # a segment shorter than W-1 still holds the end of its history; taken without a look at the lengths
    older = (places - starts + kept).clamp(0, kept - 1)[..., None].expand(state.shape)
    return torch.where((places >= starts)[..., None], newest, state.gather(1, older))


def _run_forward(x: Tensor, weight: Tensor, history: Tensor, bounds: Tensor) -> Tensor:
    y = x.new_empty(x.shape)
    x, weight, history, bounds = x.contiguous(), weight.contiguous(), history.contiguous(), bounds.contiguous()
    compiled().conv_forward(
        instruction_set(),
        threads(),
        address(x),
        address(weight),
        address(history),
        address(y),
        address(bounds),
        len(bounds) - 1,
        *weight.shape,
    )
    return y


def _run_backward(
    x: Tensor, weight: Tensor, history: Tensor, bounds: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dweight, dhistory = _shapes_backward(x, weight, history, bounds, dy)
    x, weight, history = x.contiguous(), weight.contiguous(), history.contiguous()
    bounds, dy = bounds.contiguous(), dy.contiguous()
    compiled().conv_backward(
        instruction_set(),
        threads(),
        address(x),
        address(weight),
        address(history),
        address(dy),
        address(dx),
        address(dweight),
        address(dhistory),
        address(bounds),
        len(bounds) - 1,
        *weight.shape,
    )
    return dx, dweight, dhistory


def _shapes_backward(
    x: Tensor, weight: Tensor, history: Tensor, bounds: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(weight.shape), x.new_empty(history.shape)


_conv_forward = operator(
    "conv_forward(Tensor x, Tensor weight, Tensor history, Tensor bounds) -> Tensor",
    _run_forward,
    lambda x, weight, history, bounds: x.new_empty(x.shape),
)
_conv_backward = operator(
    "conv_backward(Tensor x, Tensor weight, Tensor history, Tensor bounds, Tensor dy) -> (Tensor, Tensor, Tensor)",
    _run_backward,
    _shapes_backward,
)


class _Conv(torch.autograd.Function):
    """x [B, T, D] under weight [D, W], after history [N, W-1, D]; bounds [N+1] int64 on the flat tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, history: Tensor, bounds: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, history, bounds)
        return _conv_forward(x, weight, history, bounds)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_conv_backward(*ctx.saved_tensors, grads[0]), None
