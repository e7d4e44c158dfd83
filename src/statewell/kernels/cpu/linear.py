"""Linear attention on compiled kernels: the additive rule of delta.py for S, and a normaliser for z.

Arguments and results are those of `statewell.kernels.ops`, float32 alone. Start at `linear`.
Oracle: tests/kernels/test_native.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statewell.kernels.checks import LinearState
from statewell.kernels.cpu import delta
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
from statewell.kernels.cpu.delta import ADDITIVE
from statewell.kernels.reference.in_place import continued
from statewell.kernels.reference.recurrent import NORMALISER_EPS


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
    if not normalize:
        return delta.mix(ADDITIVE, (q, k, v, None, None), scale, matrix, cu_seqlens)
    bounds = segment_bounds(q, cu_seqlens)
    if needs_operator(q, k, v, matrix, z):
        o, final, z, _, _ = linear_rule(q, k, v, matrix, z, bounds, scale)
    else:
        o, final, z, _, _ = _forward(q, k, v, matrix, z, bounds, scale, keep=False)
    return o, (final, z)


def linear_step(
    q: Tensor, k: Tensor, v: Tensor, scale: float, state: LinearState, normalize: bool
) -> tuple[Tensor, LinearState]:
    """`linear` for one token a row."""
    if isinstance(state, Tensor):
        return delta.step(ADDITIVE, (q, k, v, None, None), scale, state)
    matrix, z = state
    if needs_operator(q, k, v, matrix, z):
        bounds = torch.arange(len(q) + 1)
        o, new, z, _, _ = linear_rule(q[None], k[None], v[None], matrix, z, bounds, scale)
        return o[0], (new, z)
    new, new_z = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in state)
    o = _step_into((q, k, v), scale, (matrix.contiguous(), z.contiguous()), (new, new_z), None)
    return o, (new, new_z)


def linear_step_(
    q: Tensor, k: Tensor, v: Tensor, state: LinearState, rows: Tensor | None, scale: float, normalize: bool
) -> Tensor:
    """`linear_step` for one token of each of the rows, in place."""
    if isinstance(state, Tensor):
        return delta.step_in_place(ADDITIVE, (q, k, v, None, None), state, rows, scale)
    if needs_operator(q, k, v):
        return continued(lambda held: linear_step(q, k, v, scale, held, normalize), state, rows)
    return _step_into((q, k, v), scale, state, state, rows)


def _step_into(
    inputs: tuple[Tensor, Tensor, Tensor],
    scale: float,
    state: tuple[Tensor, Tensor],
    new: tuple[Tensor, Tensor],
    rows: Tensor | None,
) -> Tensor:
    """o [N, HV, V]; the new S and z of `rows` go to `new`, which may be `state`."""
    (S, z), (new_S, new_z) = state, new
    return delta.step_into(ADDITIVE, (*inputs, None, None), scale, S, new_S, rows, z, new_z, NORMALISER_EPS)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, matrix: Tensor | None, z: Tensor | None, bounds: Tensor, scale: float, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """o, final S, final z, and for the backward the weights and, where `keep`, the kept states."""
    o, final, _, kept = delta.forward(ADDITIVE, (q, k, v, None, None), matrix, bounds, scale, keep)
    weight, z = _normalise(o, q, k, z, bounds, scale)
    return o, final, z, weight, kept


def _normalise(
    o: Tensor, q: Tensor, k: Tensor, z: Tensor | None, bounds: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Divide the reads o in place; their weights scale <q, z> + eps [B, T, HV] and the final z [N, HV, K]."""
    (H, K), (HV, V), N = q.shape[2:], o.shape[-2:], bounds.numel() - 1
    (q, q_step), (k, k_step) = laid_out(q, 2), laid_out(k, 2)
    z = None if z is None else z.contiguous()
    weight, final = q.new_empty(*q.shape[:2], HV), q.new_empty(N, HV, K)
    compiled().normaliser_forward(
        instruction_set(), threads(), q.data_ptr(), k.data_ptr(), q_step, k_step, address(z), bounds.data_ptr(),
        o.data_ptr(), weight.data_ptr(), final.data_ptr(), N, H, HV, K, V, scale, NORMALISER_EPS,
    )  # fmt: skip
    return weight, final


@torch.library.custom_op("statewell::linear_rule", mutates_args=(), device_types="cpu")
def linear_rule(
    q: Tensor, k: Tensor, v: Tensor, matrix: Tensor | None, z: Tensor | None, bounds: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """o, final S, final z, and what the backward needs: weights and kept states. bounds: [N+1] int64."""
    return _forward(q, k, v, matrix, z, bounds, scale, keep=True)


@linear_rule.register_fake
def _(q, k, v, matrix, z, bounds, scale):
    N, (HV, V), K = bounds.numel() - 1, v.shape[2:], q.shape[3]
    _, kept = delta.kept_shapes(ADDITIVE, v, K, N, compiled().CHUNK)
    final, final_z = v.new_empty(N, HV, K, V), v.new_empty(N, HV, K)
    return v.new_empty(v.shape), final, final_z, v.new_empty(v.shape[:3]), v.new_empty(kept)


@torch.library.custom_op("statewell::linear_rule_backward", mutates_args=(), device_types="cpu")
def linear_rule_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    z: Tensor | None,
    bounds: Tensor,
    o: Tensor,
    weight: Tensor,
    kept: Tensor,
    d_o: Tensor,
    dfinal: Tensor | None,
    dfinal_z: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, and the gradients of the S and z that were there before."""
    (H, K), (HV, V), N = q.shape[2:], v.shape[2:], bounds.numel() - 1
    (q_rows, q_step), (k_rows, k_step), d_o = laid_out(q, 2), laid_out(k, 2), d_o.contiguous()
    z = None if z is None else z.contiguous()
    dfinal_z = None if dfinal_z is None else dfinal_z.contiguous()
    dq, dk = q.new_empty(HV // H, *q.shape), q.new_empty(HV // H, *q.shape)
    dread, dz = v.new_empty(v.shape), v.new_empty(N, HV, K)
    compiled().normaliser_backward(
        instruction_set(), threads(), q_rows.data_ptr(), k_rows.data_ptr(), q_step, k_step, address(z),
        bounds.data_ptr(), o.data_ptr(), weight.data_ptr(), d_o.data_ptr(), address(dfinal_z), dread.data_ptr(),
        dq.data_ptr(), dk.data_ptr(), dz.data_ptr(), N, H, HV, K, V, scale,
    )  # fmt: skip
    none = v.new_empty(0)
    into = delta.backward(ADDITIVE, (q, k, v, None, None), bounds, none, kept, dread, dfinal, scale)
    return into[0].add_(summed(dq)), into[1].add_(summed(dk)), into[2], into[5], dz


@linear_rule_backward.register_fake
def _(q, k, v, z, bounds, o, weight, kept, d_o, dfinal, dfinal_z, scale):
    N, (HV, V), K = bounds.numel() - 1, v.shape[2:], q.shape[3]
    dmatrix, dz = v.new_empty(N, HV, K, V), v.new_empty(N, HV, K)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dmatrix, dz


def _setup(ctx, inputs, output) -> None:
    q, k, v, matrix, z, bounds, scale = inputs
    o, _, _, weight, kept = output
    ctx.scale, ctx.started = scale, (matrix is not None, z is not None)
    ctx.save_for_backward(q, k, v, z, bounds, o, weight, kept)
    ctx.set_materialize_grads(False)


def _backward(ctx, d_o, dfinal, dfinal_z, dweight, dkept):
    saved = ctx.saved_tensors
    d_o = torch.zeros_like(saved[2]) if d_o is None else d_o
    dq, dk, dv, dmatrix, dz = linear_rule_backward(*saved, d_o, dfinal, dfinal_z, ctx.scale)
    return dq, dk, dv, dmatrix if ctx.started[0] else None, dz if ctx.started[1] else None, None, None


linear_rule.register_autograd(_backward, setup_context=_setup)
