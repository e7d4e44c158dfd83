"""The chunkwise form of linear attention: inside a chunk the masked products q.k, between chunks a running sum.

The normaliser z is one more value channel, of ones: what a query reads there is the weight it gives to all keys.
Groups, layout and precision as in chunkwise.py. Source: arXiv:2006.16236 section 3. Oracle: recurrent.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, bmm

from statewell.kernels.reference.precision import promoted
from statewell.kernels.reference.recurrent import NORMALISER_EPS, State, empty_state
from statewell.kernels.reference.segments import ChunkLayout, Group, TokenRows, fit_channels, lay_out


def linear_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    state: State | None,
    normalize: bool,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, State]:
    """Linear attention in chunks; arguments and results as in `statewell.kernels.ops.linear`."""
    (B, T, HV, V), K = v.shape, q.shape[-1]
    states = () if state is None else (state,) if isinstance(state, Tensor) else state
    dtype = promoted(q, k, v, *states)
    if state is None:
        empty = empty_state((q, k, v), cu_seqlens)
        state = (empty, empty[..., 0]) if normalize else empty
    values = v.to(dtype)
    if isinstance(state, tuple):
        values = torch.nn.functional.pad(values, (0, 1), value=1.0)
        matrix = torch.cat([state[0].to(dtype), state[1].to(dtype).unsqueeze(-1)], -1)
    else:
        matrix = state.to(dtype)
    q, k, values = fit_channels(q), fit_channels(k), fit_channels(values)
    matrix = fit_channels(fit_channels(matrix).mT).mT
    layout = lay_out(B, T, HV, cu_seqlens, v.device)
    halved = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, values, matrix))
    plan = _Plan(layout, layout.groups(max(q.shape[-1], values.shape[-1]), halved), scale, dtype)
    o, final = _Linear.apply(q, k, values, matrix, plan)
    final = final[..., :K, :]
    if not normalize:
        return o[..., :V].to(v.dtype), final[..., :V]
    normalised = o[..., :V] / (o[..., V : V + 1] + NORMALISER_EPS)
    return normalised.to(v.dtype), (final[..., :V], final[..., V])


class _Plan(NamedTuple):
    """What one call computes with, apart from its tensors."""

    layout: ChunkLayout
    groups: list[Group]
    scale: float
    dtype: torch.dtype

    def chunks(self, q: Tensor, k: Tensor, v: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor]:
        """scale * q, k [M, C, K] and v [M, C, V] of a group, M = chunks * HV."""
        read, key, value = (self.layout.gather(x, group, self.dtype) for x in (q, k, v))
        return read.mul_(self.scale), key, value


class _Linear(torch.autograd.Function):
    """o = scale * (q S + tril(q k^T) v) and the final states, with a backward in chunks."""

    @staticmethod
    def forward(ctx, q, k, v, state, plan: _Plan):
        carried = plan.layout.by_rank(state)
        rows = TokenRows(plan.layout, v, v.dtype)
        kept: list[Tensor] = []
        for group in plan.groups:
            read, key, value = plan.chunks(q, k, v, group)
            written = bmm(key.mT, value)  # [M, K, V]
            states = torch.empty_like(written)  # at the start of each chunk
            for piece in group.pieces:
                held = carried[piece.states]
                states[piece.rows] = held
                held += written[piece.rows]
            rows.put(bmm(read, states).baddbmm_(bmm(read, key.mT).tril_(), value), group)
            if any(ctx.needs_input_grad):
                kept.append(states)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, *kept)
        return rows.per_value_head(), plan.layout.by_segment(carried)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dfinal):
        plan: _Plan = ctx.plan
        q, k, v, *kept = ctx.saved_tensors
        carried = plan.layout.by_rank(dfinal)
        rows = [TokenRows(plan.layout, x, plan.dtype) for x in (q, k, v)]
        for group, states in zip(reversed(plan.groups), reversed(kept), strict=True):
            read, key, value = plan.chunks(q, k, v, group)
            asked = plan.layout.gather(do, group, plan.dtype)
            into_states = bmm(read.mT, asked)
            dends = torch.empty_like(states)
            for piece in reversed(group.pieces):
                dend = carried[piece.states]
                dends[piece.rows] = dend
                dend += into_states[piece.rows]
            dproducts = bmm(asked, value.mT).tril_()
            rows[0].put(bmm(asked, states.mT).baddbmm_(dproducts, key).mul_(plan.scale), group)
            rows[1].put(bmm(value, dends.mT).baddbmm_(dproducts.mT, read), group)
            rows[2].put(bmm(key, dends).baddbmm_(bmm(read, key.mT).tril_().mT, asked), group)
        return *(into.gradient() for into in rows), plan.layout.by_segment(carried), None
