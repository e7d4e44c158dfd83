"""The chunkwise form of the delta family: batched matrix products over chunks of C tokens, a scan over chunk states.

Chunks go in bounded groups, forward and backward: what is large exists for one group at a time, and the backward
recomputes it from the inputs, the chunk-start states and three more matrices a chunk. One algorithm serves the three
mechanisms; how they differ is in decay.py, how tokens lie in chunks in segments.py. All sums in float32, or float64
when an input is float64. Shapes are checked in kernels/ops.py. Start at `_DeltaRule.forward`.
Source: arXiv:2406.06484 (WY form), 2412.06464, 2510.26692. Oracle: recurrent.py, in tests/kernels/test_chunkwise.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, bmm

from statewell.kernels.reference.decay import ChannelDecay, Decay, Faded, HeadDecay, NoDecay, Pairs
from statewell.kernels.reference.precision import promoted
from statewell.kernels.reference.segments import C, ChunkLayout, Group, TokenRows, fit_channels, lay_out
from statewell.kernels.reference.triangle import all_rows, asking, correcting, invert_


def delta_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Delta rule in chunks; arguments and results as in `statewell.kernels.ops.delta`."""
    return _run(NoDecay, q, k, v, None, beta, scale, state, cu_seqlens)


def gated_delta_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Gated delta rule in chunks; arguments and results as in `statewell.kernels.ops.gated_delta`."""
    return _run(HeadDecay, q, k, v, g.unsqueeze(-1), beta, scale, state, cu_seqlens)


def kda_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """KDA in chunks; arguments and results as in `statewell.kernels.ops.kda`."""
    return _run(ChannelDecay, q, k, v, fit_channels(g), beta, scale, state, cu_seqlens)


class _Plan(NamedTuple):
    """What one call computes with, apart from its tensors."""

    layout: ChunkLayout
    groups: list[Group]
    decay: Callable[..., Decay]
    scale: float
    dtype: torch.dtype

    def gather(self, x: Tensor, group: Group) -> Tensor:
        return self.layout.gather(x, group, self.dtype)


class _Chunks(NamedTuple):
    """The inputs of one group of M = chunks * HV matrices.

    readers: [M, C, 2, K], of each token -beta k and scale * q. k: [M, C, K]. v: [M, C, V]. beta: [M, C, 1].
    """

    readers: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    decay: Decay


def _run(
    decay: Callable[..., Decay],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    scale: float,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    (B, T, HV, V), K = v.shape, q.shape[-1]
    given = [x for x in (q, k, v, g, beta, state) if x is not None]
    dtype = promoted(*given)
    layout = lay_out(B, T, HV, cu_seqlens, v.device)
    if state is None:
        state = v.new_zeros(layout.order.numel(), HV, K, V, dtype=dtype)
    q, k, v = fit_channels(q), fit_channels(k), fit_channels(v)
    state = fit_channels(fit_channels(state.to(dtype)).mT).mT
    halved = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    plan = _Plan(layout, layout.groups(max(q.shape[-1], v.shape[-1]), halved), decay, scale, dtype)
    o, final = _DeltaRule.apply(q, k, v, g, beta.unsqueeze(-1), state, plan)
    return o[..., :V], final[..., :K, :V]


def _chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, plan: _Plan, group: Group) -> _Chunks:
    """The inputs of one group, read afresh from the tokens."""
    keys, rate = plan.gather(k, group), plan.gather(beta, group)
    readers = keys.new_empty(*keys.shape[:2], 2, keys.shape[2])
    torch.mul(keys, -rate, out=readers[:, :, 0])
    torch.mul(plan.gather(q, group), plan.scale, out=readers[:, :, 1])
    decay = plan.decay(keys, None if g is None else plan.gather(g, group))
    return _Chunks(readers, keys, plan.gather(v, group), rate, decay)


class _DeltaRule(torch.autograd.Function):
    """o and the final states of the delta family, with a backward in chunks."""

    @staticmethod
    def forward(ctx, q, k, v, g, beta, state, plan: _Plan):
        carried = plan.layout.by_rank(state)
        rows = TokenRows(plan.layout, v, v.dtype)
        kept: list[Tensor] = []
        for group in plan.groups:
            o, of_group = _group_forward(_chunks(q, k, v, g, beta, plan, group), group, carried)
            rows.put(o, group)
            if any(ctx.needs_input_grad):
                kept += of_group
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, g, beta, *kept)
        return rows.per_value_head(), plan.layout.by_segment(carried)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dfinal):
        plan: _Plan = ctx.plan
        q, k, v, g, beta, *kept = ctx.saved_tensors
        carried = plan.layout.by_rank(dfinal)
        rows = [None if x is None else TokenRows(plan.layout, x, plan.dtype) for x in (q, k, v, g, beta)]
        for number in reversed(range(len(plan.groups))):
            group, of_group = plan.groups[number], kept[3 * number : 3 * number + 3]
            x = _chunks(q, k, v, g, beta, plan, group)
            dq, *rest = _group_backward(x, group, of_group, plan.gather(do, group), carried)
            # q was read scaled
            for into, gradient in zip(rows, (dq.mul_(plan.scale), *rest), strict=True):
                if into is not None and gradient is not None:
                    into.put(gradient, group)
        gradients = [None if into is None else into.gradient() for into in rows]
        return *gradients, plan.layout.by_segment(carried), None


def _group_forward(x: _Chunks, group: Group, carried: Tensor) -> tuple[Tensor, list[Tensor]]:
    """o [M, C, V] of one group and the three matrices its backward needs; moves the states `carried` on in place."""
    products = x.decay.products(x.readers, x.k)
    invert_(products)
    inverse = correcting(products)
    reading, k_end = x.decay.since_start(x.readers).flatten(1, 2), x.decay.until_end(x.k)
    target = x.v * x.beta
    u = torch.empty_like(target)  # [M, C, V], what each token writes under its key
    states = u.new_empty(u.shape[0], *carried.shape[1:])  # at the start of each chunk
    seen = u.new_empty(u.shape[0], C, 2, u.shape[2])  # what the readers find there
    for piece in group.pieces:
        rows, held = piece.rows, carried[piece.states]
        states[rows] = held
        torch.bmm(reading[rows], held, out=seen[rows].flatten(1, 2))
        torch.bmm(inverse[rows], target[rows] + seen[rows, :, 0], out=u[rows])
        carried[piece.states] = x.decay.fade(held, rows).baddbmm_(k_end[rows].mT, u[rows])
    o = torch.baddbmm(seen[:, :, 1], asking(products), u)
    return o, [products, u, states]


def _group_backward(
    x: _Chunks, group: Group, kept: Sequence[Tensor], do: Tensor, carried: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """Gradients of q, k, v, g, beta of one group; moves those of the states, `carried`, back in place."""
    products, u, states = kept
    inverse = correcting(products)
    reading, k_end = x.decay.since_start(x.readers), x.decay.until_end(x.k)
    du = bmm(asking(products).mT, do)
    dseen = u.new_empty(u.shape[0], C, 2, u.shape[2])
    dseen[:, :, 1] = do
    dends = torch.empty_like(states)
    for piece in reversed(group.pieces):
        rows, dend = piece.rows, carried[piece.states]
        dends[rows] = dend
        du[rows].baddbmm_(k_end[rows], dend)
        dseen[rows, :, 0] = bmm(inverse[rows].mT, du[rows])
        dstart = x.decay.fade(dend, rows)
        carried[piece.states] = dstart.baddbmm_(reading[rows].flatten(1, 2).mT, dseen[rows].flatten(1, 2))
    dproducts = torch.empty_like(products)
    torch.bmm(dseen.flatten(1, 2), u.mT, out=all_rows(dproducts))
    dreading = bmm(dseen.flatten(1, 2), states.mT).view_as(reading)
    faded = Faded(reading, dreading, k_end, bmm(u, dends.mT), states, dends)
    del du
    dreaders, dk, dg = x.decay.gradients(x.readers, x.k, Pairs(products, dproducts), faded)
    dcorrect, dq, dtarget = dreaders[:, :, 0], dreaders[:, :, 1], dseen[:, :, 0]
    dbeta = (dtarget * x.v).sum(-1, keepdim=True) - (dcorrect * x.k).sum(-1, keepdim=True)
    return dq, dk.sub_(dcorrect * x.beta), dtarget * x.beta, dg, dbeta
