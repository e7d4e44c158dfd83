"""Linear attention and the delta family on compiled kernels: one recurrence, four rules, with gradients and decode.

Arguments and results are those of `statewell.kernels.ops`, float32 alone, all sums in float32. A call that needs no
gradient goes straight to the kernel and keeps nothing; one that does goes through the operation
`statewell::delta_rule`, which keeps what the backward needs: per token the error v - S^T k, per CHUNK tokens a state.
Start at `delta`. Oracle: tests/kernels/test_native.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from statewell.kernels.checks import LinearState
from statewell.kernels.cpu.binding import address, compiled, instruction_set, threads

# The rules of csrc/delta.h.
ADDITIVE, DELTA, GATED_DELTA, KEY_DECAY = range(4)

# As in the definition, kernels/reference/recurrent.py.
NORMALISER_EPS = 1e-10

# Value columns below which a head is not split among threads: each part prepares the keys again.
LEAST_COLUMNS = 16


def linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    state: LinearState | None,
    normalize: bool,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, LinearState]:
    """Linear attention; the normaliser z is one more value column, of ones."""
    if not normalize:
        return _mix(ADDITIVE, (q, k, v, None, None), scale, _matrix(state), cu_seqlens)
    o, final = _mix(ADDITIVE, (q, k, F.pad(v, (0, 1), value=1.0), None, None), scale, _matrix(state), cu_seqlens)
    return _normalised(o), (final[..., :-1], final[..., -1])


def delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float, state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The delta rule."""
    return _mix(DELTA, (q, k, v, None, beta), scale, state, cu_seqlens)


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
    return _mix(GATED_DELTA, (q, k, v, g, beta), scale, state, cu_seqlens)


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
    return _mix(KEY_DECAY, (q, k, v, g, beta), scale, state, cu_seqlens)


def linear_step(
    q: Tensor, k: Tensor, v: Tensor, scale: float, state: LinearState, normalize: bool
) -> tuple[Tensor, LinearState]:
    """Linear attention for one token a row."""
    if isinstance(state, Tensor):
        return _step(ADDITIVE, (q, k, v, None, None), scale, state)
    o, new = _step(ADDITIVE, (q, k, v, None, None), scale, state[0])
    z = state[1] + k.repeat_interleave(v.shape[1] // k.shape[1], 1)
    weight = scale * (q.repeat_interleave(v.shape[1] // q.shape[1], 1) * z).sum(-1, keepdim=True)
    return o / (weight + NORMALISER_EPS), (new, z)


def delta_step(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float, state: Tensor) -> tuple[Tensor, Tensor]:
    """The delta rule for one token a row."""
    return _step(DELTA, (q, k, v, None, beta), scale, state)


def gated_delta_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated delta rule for one token a row."""
    return _step(GATED_DELTA, (q, k, v, g, beta), scale, state)


def kda_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, state: Tensor
) -> tuple[Tensor, Tensor]:
    """KDA for one token a row."""
    return _step(KEY_DECAY, (q, k, v, g, beta), scale, state)


Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]  # q, k, v, g, beta


def _matrix(state: LinearState | None) -> Tensor | None:
    """(S, z) as one matrix with z as its last column; S alone as it is."""
    return state if state is None or isinstance(state, Tensor) else torch.cat([state[0], state[1].unsqueeze(-1)], -1)


def _normalised(o: Tensor) -> Tensor:
    """The reads divided by what was read from the column of ones."""
    return o[..., :-1] / (o[..., -1:] + NORMALISER_EPS)


def _needs_op(*tensors: Tensor | None) -> bool:
    """Whether the call must be one that autograd and torch.compile can see."""
    if torch.compiler.is_compiling():
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _mix(
    rule: int, inputs: Inputs, scale: float, state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """o [B, T, HV, V] and the states after the last tokens."""
    B, T = inputs[0].shape[:2]
    bounds = torch.arange(B + 1) * T if cu_seqlens is None else cu_seqlens.to(torch.int64).contiguous()
    if _needs_op(*inputs, state):
        o, final, _, _ = delta_rule(rule, *inputs, state, bounds, scale)
    else:
        o, final, _, _ = _forward(rule, inputs, state, bounds, scale, keep=False)
    return o, final


def _laid_out(x: Tensor | None, axes: int) -> tuple[Tensor | None, int]:
    """x with its last `axes` axes next to each other and one step between tokens; the step, in elements.

    The leading axes are tokens: [B, T], or [N]. A view that is laid out already, such as a slice of a wider
    projection, is taken as it is.
    """
    if x is None:
        return None, 0
    if x.is_contiguous():
        return x, _numel(x.shape[-axes:])
    shape, strides = x.shape, x.stride()
    packed = strides[-1] == 1 and (axes == 1 or strides[-2] == shape[-1])
    if packed and (x.dim() == axes + 1 or shape[0] == 1):
        return x, strides[-axes - 1]
    if packed and strides[0] == shape[1] * strides[1]:
        return x, strides[1]
    return x.contiguous(), _numel(shape[-axes:])


def _numel(shape: torch.Size) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


class _Handed:
    """The inputs as the kernels take them: addresses, then the steps between tokens.

    Holds the tensors, so that the addresses stay valid while it lives.
    """

    def __init__(self, inputs: Inputs) -> None:
        q, k, v, g, beta = inputs
        gate_axes = 1 if g is None or g.dim() < q.dim() else 2
        pairs = [_laid_out(x, axes) for x, axes in zip((q, k, v, g, beta), (2, 2, 2, gate_axes, 1), strict=True)]
        self.tensors = [x for x, _ in pairs]
        self.arguments = [address(x) for x in self.tensors] + [step for _, step in pairs]


def _forward(
    rule: int, inputs: Inputs, state: Tensor | None, bounds: Tensor, scale: float, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o, final, and for the backward, where `keep`, errors [B, T, HV, V] and kept states; empty otherwise."""
    q, _, v, _, _ = inputs
    (H, K), (HV, V), N = q.shape[2:], v.shape[2:], bounds.numel() - 1
    native, handed = compiled(), _Handed(inputs)
    state = None if state is None else state.contiguous()
    o, final = v.new_empty(v.shape), v.new_empty(N, HV, K, V)
    errors, kept = _kept_shapes(rule, v, K, N, native.CHUNK) if keep else ((0,), (0,))
    errors, kept = v.new_empty(errors), v.new_empty(kept)
    native.delta_forward(
        instruction_set(), threads(), rule, *handed.arguments, address(state), bounds.data_ptr(),
        o.data_ptr(), final.data_ptr(), errors.data_ptr(), kept.data_ptr(), N, H, HV, K, V, scale,
    )  # fmt: skip
    return o, final, errors, kept


def _kept_shapes(rule: int, v: Tensor, K: int, N: int, chunk: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
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
    return _forward(rule, (q, k, v, g, beta), state, bounds, scale, keep=True)


@delta_rule.register_fake
def _(rule, q, k, v, g, beta, state, bounds, scale):
    N, HV, K, V = bounds.numel() - 1, v.shape[2], q.shape[3], v.shape[3]
    errors, kept = _kept_shapes(rule, v, K, N, compiled().CHUNK)
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
    (H, K), (HV, V), N = q.shape[2:], v.shape[2:], bounds.numel() - 1
    native, handed, parts = compiled(), _Handed((q, k, v, g, beta)), _parts(N * HV, V)
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
    dg, dbeta = (x if x.dim() == 1 else _summed(x) for x in (dg, dbeta))
    return _summed(dq), _summed(dk), dv, dg, dbeta, dstate


def _summed(parts: Tensor) -> Tensor:
    """The sum over the first axis."""
    return parts.sum(0) if parts.shape[0] > 1 else parts.squeeze(0)


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


def _step(rule: int, inputs: Inputs, scale: float, state: Tensor) -> tuple[Tensor, Tensor]:
    """o [N, HV, V] and the new states of one token a row."""
    if _needs_op(*inputs, state):
        # a gradient through one token: the same recurrence over segments of one token
        bounds = torch.arange(state.shape[0] + 1)
        q, k, v, g, beta = (None if x is None else x.unsqueeze(0) for x in inputs)
        o, new, _, _ = delta_rule(rule, q, k, v, g, beta, state, bounds, scale)
        return o[0], new
    new = torch.empty_like(state, memory_format=torch.contiguous_format)
    return _step_into(rule, inputs, scale, state.contiguous(), new), new


def _step_into(rule: int, inputs: Inputs, scale: float, state: Tensor, new: Tensor) -> Tensor:
    """o [N, HV, V]; the new states go to `new`, which may be `state` itself."""
    q, _, v, _, _ = inputs
    (N, H, K), (HV, V) = q.shape, v.shape[1:]
    handed, o = _Handed(inputs), v.new_empty(v.shape)
    compiled().delta_step(
        instruction_set(), threads(), rule, *handed.arguments, state.data_ptr(), new.data_ptr(), 0,
        o.data_ptr(), N, H, HV, K, V, scale,
    )  # fmt: skip
    return o
