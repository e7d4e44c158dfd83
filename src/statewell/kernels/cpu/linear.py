"""Linear attention on compiled kernels: the additive rule of delta.py for S, and a normaliser of its own for z.

Arguments and results are those of `statewell.kernels.ops`, float32 alone. The weight that a query gives to all keys is
`statewell::normaliser`; nothing is kept for its backward. Start at `linear`. Oracle: tests/kernels/test_native.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statewell.kernels.checks import LinearState
from statewell.kernels.cpu.binding import (
    address,
    compiled,
    instruction_set,
    laid_out,
    needs_operator,
    segment_bounds,
    summed,
    threads,
)
from statewell.kernels.cpu.delta import ADDITIVE, mix, step

# As in the definition, kernels/reference/recurrent.py.
NORMALISER_EPS = 1e-10


def linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    state: LinearState | None,
    normalize: bool,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, LinearState]:
    """A sum of all writes, read by q, divided by the sum of its weights when normalising."""
    matrix, z = state if isinstance(state, tuple) else (state, None)
    o, final = mix(ADDITIVE, (q, k, v, None, None), scale, matrix, cu_seqlens)
    if not normalize:
        return o, final
    weight, z = _weight(q, k, z, segment_bounds(q, cu_seqlens), scale, v.shape[2])
    return o / (weight + NORMALISER_EPS).unsqueeze(-1), (final, z)


def linear_step(
    q: Tensor, k: Tensor, v: Tensor, scale: float, state: LinearState, normalize: bool
) -> tuple[Tensor, LinearState]:
    """`linear` for one token a row."""
    matrix, z = state if isinstance(state, tuple) else (state, None)
    o, new = step(ADDITIVE, (q, k, v, None, None), scale, matrix)
    if not normalize:
        return o, new
    weight, z = _weight(q[None], k[None], z, torch.arange(len(q) + 1), scale, v.shape[1])
    return o / (weight[0] + NORMALISER_EPS).unsqueeze(-1), (new, z)


def _weight(q: Tensor, k: Tensor, state: Tensor | None, bounds: Tensor, scale: float, HV: int) -> tuple[Tensor, Tensor]:
    """scale <q, z> [B, T, HV] and the final z [N, HV, K]."""
    run = normaliser if needs_operator(q, k, state) else _forward
    return run(q, k, state, bounds, scale, HV)


def _forward(
    q: Tensor, k: Tensor, state: Tensor | None, bounds: Tensor, scale: float, HV: int
) -> tuple[Tensor, Tensor]:
    (B, T, H, K), N = q.shape, bounds.numel() - 1
    (q, q_step), (k, k_step) = laid_out(q, 2), laid_out(k, 2)
    state = None if state is None else state.contiguous()
    weight, final = q.new_empty(B, T, HV), q.new_empty(N, HV, K)
    compiled().normaliser_forward(
        instruction_set(), threads(), q.data_ptr(), k.data_ptr(), q_step, k_step, address(state), bounds.data_ptr(),
        weight.data_ptr(), final.data_ptr(), N, H, HV, K, scale,
    )  # fmt: skip
    return weight, final


@torch.library.custom_op("statewell::normaliser", mutates_args=(), device_types="cpu")
def normaliser(
    q: Tensor, k: Tensor, state: Tensor | None, bounds: Tensor, scale: float, HV: int
) -> tuple[Tensor, Tensor]:
    """The weight of every token and the final z. bounds: [N+1] int64, where segments start."""
    return _forward(q, k, state, bounds, scale, HV)


@normaliser.register_fake
def _(q, k, state, bounds, scale, HV):
    return q.new_empty(*q.shape[:2], HV), q.new_empty(bounds.numel() - 1, HV, q.shape[3])


@torch.library.custom_op("statewell::normaliser_backward", mutates_args=(), device_types="cpu")
def normaliser_backward(
    q: Tensor,
    k: Tensor,
    state: Tensor | None,
    bounds: Tensor,
    dweight: Tensor,
    dfinal: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and the gradient of the z that was there before."""
    (H, K), HV, N = q.shape[2:], dweight.shape[2], bounds.numel() - 1
    shape = (HV // H, *q.shape)
    (q, q_step), (k, k_step), dweight = laid_out(q, 2), laid_out(k, 2), dweight.contiguous()
    state = None if state is None else state.contiguous()
    dfinal = None if dfinal is None else dfinal.contiguous()
    dq, dk, dstate = q.new_empty(shape), q.new_empty(shape), q.new_empty(N, HV, K)
    compiled().normaliser_backward(
        instruction_set(), threads(), q.data_ptr(), k.data_ptr(), q_step, k_step, address(state), bounds.data_ptr(),
        dweight.data_ptr(), address(dfinal), dq.data_ptr(), dk.data_ptr(), dstate.data_ptr(), N, H, HV, K, scale,
    )  # fmt: skip
    return summed(dq), summed(dk), dstate


@normaliser_backward.register_fake
def _(q, k, state, bounds, dweight, dfinal, scale):
    dstate = q.new_empty(bounds.numel() - 1, dweight.shape[2], q.shape[3])
    return q.new_empty(q.shape), q.new_empty(k.shape), dstate


def _setup(ctx, inputs, output) -> None:
    q, k, state, bounds, scale, HV = inputs
    ctx.scale, ctx.HV = scale, HV
    ctx.save_for_backward(q, k, state, bounds)
    ctx.set_materialize_grads(False)


def _backward(ctx, dweight, dfinal):
    q, k, state, bounds = ctx.saved_tensors
    dweight = q.new_zeros(*q.shape[:2], ctx.HV) if dweight is None else dweight
    dq, dk, dstate = normaliser_backward(q, k, state, bounds, dweight, dfinal, ctx.scale)
    return dq, dk, None if state is None else dstate, None, None, None


normaliser.register_autograd(_backward, setup_context=_setup)
