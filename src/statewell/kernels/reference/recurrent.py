"""The recurrent operations token by token: the definition that every faster form is checked against.

Each mechanism is one function of one token, in the order fade, read with k, write, read with q; the `_recurrent` forms
apply it along time, the `_step` forms once. Shapes are checked in kernels/ops.py, not here. All sums run in float32, or
float64 when an input is float64. Start reading at `_linear_token`.
Source: arXiv:2006.16236 (linear), 2406.06484 (delta), 2412.06464 (gated delta), 2510.26692 (KDA).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from statewell.kernels.reference.precision import promoted

# Added to the normaliser of linear attention (fla's value), so that a query without any weight reads zero.
NORMALISER_EPS = 1e-10

State = Tensor | tuple[Tensor, Tensor]


def _read(state: Tensor, x: Tensor) -> Tensor:
    """What `x` [N, HV, K] retrieves from `state` [N, HV, K, V]: S^T x, [N, HV, V]."""
    return torch.matmul(x.unsqueeze(-2), state).squeeze(-2)


def _write(state: Tensor, k: Tensor, u: Tensor) -> Tensor:
    """`state` with u added under the key k: S + k u^T."""
    return state + k.unsqueeze(-1) * u.unsqueeze(-2)


def _linear_token(q: Tensor, k: Tensor, v: Tensor, scale: float, state: Tensor) -> tuple[Tensor, Tensor]:
    """Linear attention: add v under k, read with q."""
    state = _write(state, k, v)
    return scale * _read(state, q), state


def _linear_normalised_token(
    q: Tensor, k: Tensor, v: Tensor, scale: float, state: tuple[Tensor, Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Linear attention with the read divided by the weight that q gives to all keys so far."""
    matrix, z = state
    o, matrix = _linear_token(q, k, v, scale, matrix)
    z = z + k
    weight = scale * (q * z).sum(-1, keepdim=True)  # [N, HV, 1]
    return o / (weight + NORMALISER_EPS), (matrix, z)


def _delta_token(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float, state: Tensor) -> tuple[Tensor, Tensor]:
    """Delta rule: move what k retrieves toward v by the fraction beta, read with q."""
    u = beta.unsqueeze(-1) * (v - _read(state, k))
    state = _write(state, k, u)
    return scale * _read(state, q), state


def _gated_delta_token(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Gated delta rule: fade the whole state by exp(g), then the delta rule."""
    # fade before the read: the correction compares v against the faded state
    state = g.exp()[..., None, None] * state
    return _delta_token(q, k, v, beta, scale, state)


def _kda_token(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, state: Tensor
) -> tuple[Tensor, Tensor]:
    """KDA: fade every key channel of the state by its own exp(g), then the delta rule."""
    state = g.exp().unsqueeze(-1) * state
    return _delta_token(q, k, v, beta, scale, state)


def linear_step(q: Tensor, k: Tensor, v: Tensor, scale: float, state: State, normalize: bool) -> tuple[Tensor, State]:
    """Linear attention for one token a row: q, k [N, H, K] through the feature map, v [N, HV, V].

    state: S [N, HV, K, V], or (S, z) with z [N, HV, K] when normalising; not changed. Returns o [N, HV, V], new state.
    """
    return _once(_linear_normalised_token if normalize else _linear_token, (q, k, v), scale, state)


def delta_step(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float, state: Tensor) -> tuple[Tensor, State]:
    """Delta rule for one token a row: q, k [N, H, K], v [N, HV, V], beta [N, HV], state [N, HV, K, V] not changed."""
    return _once(_delta_token, (q, k, v, beta), scale, state)


def gated_delta_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, state: Tensor
) -> tuple[Tensor, State]:
    """Gated delta rule for one token a row: as `delta_step`, with g [N, HV], natural-log retention."""
    return _once(_gated_delta_token, (q, k, v, g, beta), scale, state)


def kda_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, state: Tensor
) -> tuple[Tensor, State]:
    """KDA for one token a row: as `delta_step`, with g [N, HV, K], natural-log retention per key channel."""
    return _once(_kda_token, (q, k, v, g, beta), scale, state)


def linear_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    state: State | None,
    normalize: bool,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, State]:
    """Linear attention token by token; arguments and results as in `statewell.kernels.ops.linear`."""
    if state is None:
        matrix = empty_state((q, k, v), cu_seqlens)
        state = (matrix, matrix[..., 0]) if normalize else matrix
    token = _linear_normalised_token if normalize else _linear_token
    return _along_time(token, (q, k, v), scale, state, cu_seqlens)


def delta_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, State]:
    """Delta rule token by token; arguments and results as in `statewell.kernels.ops.delta`."""
    inputs = (q, k, v, beta)
    state = empty_state(inputs, cu_seqlens) if state is None else state
    return _along_time(_delta_token, inputs, scale, state, cu_seqlens)


def gated_delta_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, State]:
    """Gated delta rule token by token; arguments and results as in `statewell.kernels.ops.gated_delta`."""
    inputs = (q, k, v, g, beta)
    state = empty_state(inputs, cu_seqlens) if state is None else state
    return _along_time(_gated_delta_token, inputs, scale, state, cu_seqlens)


def kda_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, State]:
    """KDA token by token; arguments and results as in `statewell.kernels.ops.kda`."""
    inputs = (q, k, v, g, beta)
    state = empty_state(inputs, cu_seqlens) if state is None else state
    return _along_time(_kda_token, inputs, scale, state, cu_seqlens)


def empty_state(inputs: Sequence[Tensor], cu_seqlens: Tensor | None) -> Tensor:
    """A state [N, HV, K, V] of zeros for inputs (q, k, v, ...) laid out [B, T, H, K]."""
    q, v = inputs[0], inputs[2]
    N = v.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    return v.new_zeros(N, v.shape[2], q.shape[3], v.shape[3], dtype=promoted(*inputs))


def _held(state: State, dtype: torch.dtype) -> State:
    """The state in the dtype of the sums."""
    return state.to(dtype) if isinstance(state, Tensor) else (state[0].to(dtype), state[1].to(dtype))


def _per_value_head(inputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The inputs (q, k, v, ...) in `dtype`, q and k repeated: value head h has query/key head h // (HV / H)."""
    q, k, v, *gates = (x.to(dtype) for x in inputs)
    repeats = v.shape[-2] // q.shape[-2]
    if repeats > 1:
        q, k = q.repeat_interleave(repeats, dim=-2), k.repeat_interleave(repeats, dim=-2)
    return [q, k, v, *gates]


def _once(token: Callable, inputs: Sequence[Tensor], scale: float, state: State) -> tuple[Tensor, State]:
    """Apply `token` to one token of every row."""
    states = (state,) if isinstance(state, Tensor) else state
    dtype = promoted(*inputs, *states)
    o, new = token(*_per_value_head(inputs, dtype), scale, _held(state, dtype))
    return o.to(inputs[2].dtype), new


def _along_time(
    token: Callable, inputs: Sequence[Tensor], scale: float, state: State, cu_seqlens: Tensor | None
) -> tuple[Tensor, State]:
    """Apply `token` to every token in order: all rows side by side, or one packed segment after the other."""
    states = (state,) if isinstance(state, Tensor) else state
    dtype = promoted(*inputs, *states)
    state, (B, T), v = _held(state, dtype), inputs[0].shape[:2], inputs[2]
    times = [x.unbind(1) for x in _per_value_head(inputs, dtype)]
    outputs: list[Tensor] = []

    def run(held: State, start: int, stop: int) -> State:
        for t in range(start, stop):
            o, held = token(*(x[t] for x in times), scale, held)
            outputs.append(o.to(v.dtype))
        return held

    if cu_seqlens is None:
        final = run(state, 0, T)
    else:
        bounds = cu_seqlens.tolist()
        ends = [run(_row(state, n), bounds[n], bounds[n + 1]) for n in range(len(bounds) - 1)]
        final = _joined(ends)
    o = torch.stack(outputs, 1) if outputs else v.new_zeros(B, 0, *v.shape[2:])
    return o, final


def _row(state: State, n: int) -> State:
    """The state of segment n as a batch of one."""
    if isinstance(state, Tensor):
        return state[n : n + 1]
    return state[0][n : n + 1], state[1][n : n + 1]


def _joined(ends: list[State]) -> State:
    """The states of all segments in one batch."""
    if isinstance(ends[0], Tensor):
        return torch.cat([end for end in ends if isinstance(end, Tensor)])
    return torch.cat([end[0] for end in ends]), torch.cat([end[1] for end in ends])
