"""The delta family on compiled kernels: one recurrence, four rules, with gradients and decode.

Arguments and results are those of `statewell.kernels.ops`, float32 alone, all sums in float32. A call that needs no
gradient goes straight to the kernel and keeps nothing; one that does goes through the operation
`statewell::delta_rule`, which keeps what the backward needs: per token the error v - S^T k, per CHUNK tokens a state.
The fourth rule, additive, is the matrix of linear attention (linear.py). Start at `delta`.
Oracle: tests/kernels/test_native.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
from statewell.kernels.reference.in_place import continued

# The rules of csrc/delta.h.
ADDITIVE, DELTA, GATED_DELTA, KEY_DECAY = range(4)

# Value columns below which a head is not split among threads: each part prepares the keys again.
LEAST_COLUMNS = 16


def delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float, state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The delta rule."""
    return mix(DELTA, (q, k, v, None, beta), scale, state, cu_seqlens)


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The delta rule on a state that fades by head."""
    return mix(GATED_DELTA, (q, k, v, g, beta), scale, state, cu_seqlens)


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The delta rule on a state that fades by key channel."""
    return mix(KEY_DECAY, (q, k, v, g, beta), scale, state, cu_seqlens)


def delta_step(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float, state: Tensor) -> tuple[Tensor, Tensor]:
    """The delta rule for one token a row."""
    return step(DELTA, (q, k, v, None, beta), scale, state)


def gated_delta_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated delta rule for one token a row."""
    return step(GATED_DELTA, (q, k, v, g, beta), scale, state)


def kda_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, state: Tensor
) -> tuple[Tensor, Tensor]:
    """KDA for one token a row."""
    return step(KEY_DECAY, (q, k, v, g, beta), scale, state)


def delta_step_(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor, rows: Tensor | None, scale: float
) -> Tensor:
    """The delta rule for one token of each of the rows, in place."""
    return step_in_place(DELTA, (q, k, v, None, beta), state, rows, scale)


def gated_delta_step_(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, rows: Tensor | None, scale: float
) -> Tensor:
    """The gated delta rule for one token of each of the rows, in place."""
    return step_in_place(GATED_DELTA, (q, k, v, g, beta), state, rows, scale)


def kda_step_(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, rows: Tensor | None, scale: float
) -> Tensor:
    """KDA for one token of each of the rows, in place."""
    return step_in_place(KEY_DECAY, (q, k, v, g, beta), state, rows, scale)


Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]  # q, k, v, g, beta


def mix(
    rule: int, inputs: Inputs, scale: float, state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """o [B, T, HV, V] and the states after the last tokens."""
    bounds = segment_bounds(inputs[0], cu_seqlens)
    if needs_operator(*inputs, state):
        o, final, _, _ = delta_rule(rule, *inputs, state, bounds, scale)
    else:
        o, final, _, _ = forward(rule, inputs, state, bounds, scale, keep=False)
    return o, final


class _Handed:
    """The inputs as the kernels take them: addresses, then the steps between tokens.

    Holds the tensors, so that the addresses stay valid while it lives.
    """

    def __init__(self, inputs: Inputs) -> None:
        q, _, _, g, _ = inputs
        gate_axes = 1 if g is None or g.dim() < q.dim() else 2
        self.tensors: list[Tensor] = []
        addresses, steps = [0] * 5, [0] * 5
        for i, axes in enumerate((2, 2, 2, gate_axes, 1)):
            x = inputs[i]
            if x is not None:
                held, steps[i] = laid_out(x, axes)
                addresses[i] = held.data_ptr()
                self.tensors.append(held)
        self.arguments = addresses + steps


def forward(
    rule: int, inputs: Inputs, state: Tensor | None, bounds: Tensor, scale: float, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o, final, and for the backward, where `keep`, errors [B, T, HV, V] and kept states; empty otherwise."""
    q, _, v, _, _ = inputs
    (H, K), (HV, V), N = q.shape[2:], v.shape[2:], bounds.numel() - 1
    native, handed = compiled(), _Handed(inputs)
    state = None if state is None else state.contiguous()
    o, final = v.new_empty(v.shape), v.new_empty(N, HV, K, V)
    errors, kept = kept_shapes(rule, v, K, N, native.CHUNK) if keep else ((0,), (0,))
    errors, kept = v.new_empty(errors), v.new_empty(kept)
    native.delta_forward(
        instruction_set(), threads(), rule, *handed.arguments, address(state), bounds.data_ptr(),
        o.data_ptr(), final.data_ptr(), errors.data_ptr(), kept.data_ptr(), N, H, HV, K, V, scale,
    )  # fmt: skip
    return o, final, errors, kept


def kept_shapes(rule: int, v: Tensor, K: int, N: int, chunk: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of errors and kept states: linear attention has no errors; a state for every chunk begun."""
    B, T, HV, V = v.shape
    return (0,) if rule == ADDITIVE else (B, T, HV, V), (B * T // chunk + N, HV, K, V)


@torch.library.custom_op("statewell::delta_rule", mutates_args=(), device_types="cpu")
def delta_rule(
    rule: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    state: Tensor | None,
    bounds: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o, final, and what the backward needs: errors and kept states. bounds: [N+1] int64, where segments start."""
    return forward(rule, (q, k, v, g, beta), state, bounds, scale, keep=True)


@delta_rule.register_fake
def _(rule, q, k, v, g, beta, state, bounds, scale):
    N, HV, K, V = bounds.numel() - 1, v.shape[2], q.shape[3], v.shape[3]
    errors, kept = kept_shapes(rule, v, K, N, compiled().CHUNK)
    return v.new_empty(v.shape), v.new_empty(N, HV, K, V), v.new_empty(errors), v.new_empty(kept)


@torch.library.custom_op("statewell::delta_rule_backward", mutates_args=(), device_types="cpu")
def delta_rule_backward(
    rule: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    bounds: Tensor,
    errors: Tensor,
    kept: Tensor,
    d_o: Tensor,
    dfinal: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, dg, dbeta, dstate; dg and dbeta are empty where there is no g or beta."""
    return backward(rule, (q, k, v, g, beta), bounds, errors, kept, d_o, dfinal, scale)


def backward(
    rule: int,
    inputs: Inputs,
    bounds: Tensor,
    errors: Tensor,
    kept: Tensor,
    d_o: Tensor,
    dfinal: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `delta_rule_backward`, at once."""
    q, _, v, g, beta = inputs
    (H, K), (HV, V), N = q.shape[2:], v.shape[2:], bounds.numel() - 1
    native, handed, parts = compiled(), _Handed(inputs), _parts(N * HV, V)
    places = parts * (HV // H)
    dq, dk = q.new_empty(places, *q.shape), q.new_empty(places, *q.shape)
    dg = q.new_empty(0) if g is None else q.new_empty(parts, *g.shape)
    dbeta = q.new_empty(0) if beta is None else q.new_empty(parts, *beta.shape)
    dv, dstate = v.new_empty(v.shape), v.new_empty(N, HV, K, V)
    d_o = d_o.contiguous()
    dfinal = None if dfinal is None else dfinal.contiguous()
    native.delta_backward(
        instruction_set(), threads(), rule, *handed.arguments, bounds.data_ptr(),
        errors.data_ptr(), kept.data_ptr(), d_o.data_ptr(), address(dfinal),
        *[x.data_ptr() for x in (dq, dk, dv, dg, dbeta, dstate)], parts, N, H, HV, K, V, scale,
    )  # fmt: skip
    dg, dbeta = (x if x.dim() == 1 else summed(x) for x in (dg, dbeta))
    return summed(dq), summed(dk), dv, dg, dbeta, dstate


def _parts(tasks: int, V: int) -> int:
    """Ranges of value columns each head is split into, so that no thread is left without work."""
    count = threads()
    if tasks == 0 or tasks % count == 0 or tasks >= 4 * count:
        return 1
    return max(1, min(-(-2 * count // tasks), V // LEAST_COLUMNS))


@delta_rule_backward.register_fake
def _(rule, q, k, v, g, beta, bounds, errors, kept, d_o, dfinal, scale):
    dg = q.new_empty(0) if g is None else q.new_empty(g.shape)
    dbeta = q.new_empty(0) if beta is None else q.new_empty(beta.shape)
    dstate = v.new_empty(bounds.numel() - 1, v.shape[2], q.shape[3], v.shape[3])
    return q.new_empty(q.shape), q.new_empty(k.shape), v.new_empty(v.shape), dg, dbeta, dstate


def _setup(ctx, inputs, output) -> None:
    rule, q, k, v, g, beta, state, bounds, scale = inputs
    _, _, errors, kept = output
    ctx.rule, ctx.scale, ctx.started = rule, scale, state is not None
    ctx.save_for_backward(q, k, v, g, beta, bounds, errors, kept)
    ctx.set_materialize_grads(False)


def _backward(ctx, d_o, dfinal, derrors, dkept):
    *inputs, bounds, errors, kept = ctx.saved_tensors
    d_o = torch.zeros_like(inputs[2]) if d_o is None else d_o
    dq, dk, dv, dg, dbeta, dstate = delta_rule_backward(ctx.rule, *inputs, bounds, errors, kept, d_o, dfinal, ctx.scale)
    g, beta = inputs[3:]
    dg, dbeta = None if g is None else dg, None if beta is None else dbeta
    return None, dq, dk, dv, dg, dbeta, dstate if ctx.started else None, None, None


delta_rule.register_autograd(_backward, setup_context=_setup)


def step(rule: int, inputs: Inputs, scale: float, state: Tensor) -> tuple[Tensor, Tensor]:
    """o [N, HV, V] and the new states of one token a row."""
    if needs_operator(*inputs, state):
        # a gradient through one token: the same recurrence over segments of one token
        bounds = torch.arange(state.shape[0] + 1)
        q, k, v, g, beta = (None if x is None else x.unsqueeze(0) for x in inputs)
        o, new, _, _ = delta_rule(rule, q, k, v, g, beta, state, bounds, scale)
        return o[0], new
    new = torch.empty_like(state, memory_format=torch.contiguous_format)
    return step_into(rule, inputs, scale, state.contiguous(), new, None), new


def step_in_place(rule: int, inputs: Inputs, state: Tensor, rows: Tensor | None, scale: float) -> Tensor:
    """o [N, HV, V]; the states [M, HV, K, V] of `rows` move on where they lie, whole and contiguous."""
    if needs_operator(*inputs):
        return continued(lambda held: step(rule, inputs, scale, held), state, rows)
    return step_into(rule, inputs, scale, state, state, rows)


def step_into(
    rule: int,
    inputs: Inputs,
    scale: float,
    state: Tensor,
    new: Tensor,
    rows: Tensor | None,
    z: Tensor | None = None,
    new_z: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """o [N, HV, V]; the new states of `rows` (None: all) go to `new`, which may be `state`; with z, o is normalised."""
    q, _, v, _, _ = inputs
    (N, H, K), (HV, V) = q.shape, v.shape[1:]
    handed, o = _Handed(inputs), torch.empty_like(v, memory_format=torch.contiguous_format)
    rows = None if rows is None else rows.contiguous()
    compiled().delta_step(
        instruction_set(), threads(), rule, *handed.arguments, state.data_ptr(), new.data_ptr(),
        address(z), address(new_z), address(rows), o.data_ptr(), N, H, HV, K, V, scale, eps,
    )  # fmt: skip
    return o
