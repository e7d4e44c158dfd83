"""The chunkwise form of linear attention: inside a chunk the masked products q.k, between chunks a running sum.

The normaliser z is one more value channel, of ones: what a query reads there is the weight it gives to all keys.
Groups, layout and precision as in chunkwise.py. Source: arXiv:2006.16236 section 3. Oracle: recurrent.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, bmm

from statewell.kernels.reference.precision import promoted
from statewell.kernels.reference.recurrent import NORMALISER_EPS, State, empty_state
from statewell.kernels.reference.segments import ChunkLayout, Group, chunks_per_group, fit_channels, lay_out


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
    layout = lay_out(B, T, cu_seqlens, v.device)
    groups = layout.groups(chunks_per_group(HV, q.shape[-1], values.shape[-1]), HV)
    plan = _Plan(layout=layout, scale=scale, dtype=dtype, HV=HV, groups=groups)
    o, final = _Linear.apply(q, k, values, matrix, plan)
    final = final[..., :K, :]
    if not normalize:
        return o[..., :V].to(v.dtype), final[..., :V]
    normalised = o[..., :V] / (o[..., V : V + 1] + NORMALISER_EPS)
    return normalised.to(v.dtype), (final[..., :V], final[..., V])


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What one call computes with, apart from its tensors."""

    layout: ChunkLayout
    scale: float
    dtype: torch.dtype
    HV: int
    groups: list[Group]

    def gather(self, x: Tensor, group: Group) -> Tensor:
        return self.layout.gather(x, group, self.HV, self.dtype)


class _Linear(torch.autograd.Function):
    """o = scale * (q S + tril(q k^T) v) and the final states, with a backward in chunks."""

    @staticmethod
    def forward(ctx, q, k, v, state, plan: _Plan):
        layout, HV = plan.layout, plan.HV
        carried = state[layout.order].flatten(0, 1)  # [N * HV, K, V], by rank
        rows = layout.new_rows(v, HV, v.shape[-1], v.dtype)
        kept: list[Tensor] = []
        for group in plan.groups:
            qc, kc, vc = plan.gather(q, group).mul_(plan.scale), plan.gather(k, group), plan.gather(v, group)
            written = bmm(kc.mT, vc)  # [M, K, V]
            states = torch.empty_like(written)  # at the start of each chunk
            for piece in group.pieces:
                held = carried[piece.states]
                states[piece.rows] = held
                held += written[piece.rows]
            o = bmm(qc, states).baddbmm_(bmm(qc, kc.mT).tril_(), vc)
            layout.scatter_(rows, o, group, HV)
            if any(ctx.needs_input_grad):
                kept.append(states)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, *kept)
        final = carried.unflatten(0, (-1, HV))[layout.rank_of]
        return layout.tokens_of(rows, v.shape[:2], HV), final

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dfinal):
        plan: _Plan = ctx.plan
        layout, HV = plan.layout, plan.HV
        q, k, v, *kept = ctx.saved_tensors
        carried = dfinal[layout.order].flatten(0, 1)
        inputs = [q, k, v]
        rows = [layout.new_rows(x, HV, x.shape[-1], plan.dtype) for x in inputs]
        for group, states in zip(reversed(plan.groups), reversed(kept), strict=True):
            qc, kc, vc = plan.gather(q, group).mul_(plan.scale), plan.gather(k, group), plan.gather(v, group)
            doc = plan.gather(do, group)
            read = bmm(qc.mT, doc)
            dends = torch.empty_like(states)
            for piece in reversed(group.pieces):
                dend = carried[piece.states]
                dends[piece.rows] = dend
                dend += read[piece.rows]
            dP = bmm(doc, vc.mT).tril_()
            dq = bmm(doc, states.mT).baddbmm_(dP, kc).mul_(plan.scale)
            dk = bmm(vc, dends.mT).baddbmm_(dP.mT, qc)
            dv = bmm(kc, dends).baddbmm_(bmm(qc, kc.mT).tril_().mT, doc)
            for into, gradient in zip(rows, (dq, dk, dv), strict=True):
                layout.scatter_(into, gradient, group, HV)
        out = [layout.gradient_of(x, into, HV) for x, into in zip(inputs, rows, strict=True)]
        return *out, carried.unflatten(0, (-1, HV))[layout.rank_of], None
