"""Sparse feed-forward: the router that picks experts for each token, and the experts it picks.

Neither knows what an activation is nor how load is balanced: the bias comes in ready and gets no gradient.
Gradients of the three rearranging steps are written out, since indexing's own scatter row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewell.kernels.reference.precision import promoted


def route(
    x: Tensor, weight: Tensor, bias: Tensor, top_k: int, scaling: float, renormalize: bool
) -> tuple[Tensor, Tensor]:
    """The top_k experts of each token by sigmoid score plus bias, with weights from the scores alone."""
    scores, biased = _sigmoid_scores(x, weight, bias)
    index = _best(biased, top_k)
    return index, _weights(scores, index, scaling, renormalize)


def route_grouped(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    top_k: int,
    groups: tuple[int, int],
    scaling: float,
    renormalize: bool,
) -> tuple[Tensor, Tensor]:
    """As `route`, inside the best groups[1] of groups[0] equal groups, judged by their two best biased scores."""
    scores, biased = _sigmoid_scores(x, weight, bias)
    grouped = biased.unflatten(-1, (groups[0], -1))  # [..., groups, E/groups]
    judged = grouped.topk(2, dim=-1).values.sum(-1).clamp_(min=torch.finfo(grouped.dtype).min)
    kept = _best(judged, groups[1])
    outside = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(-1, kept, False)
    # -inf ranks below every expert inside: their scores are finite
    inside = grouped.masked_fill(outside[..., None], float("-inf")).flatten(-2)
    index = _best(inside, top_k)
    return index, _weights(scores, index, scaling, renormalize)


def route_softmax(x: Tensor, weight: Tensor, top_k: int, scaling: float, renormalize: bool) -> tuple[Tensor, Tensor]:
    """The top_k experts of each token by softmax score."""
    dtype = promoted(x, weight)
    scores = torch.softmax(x.to(dtype) @ weight.to(dtype).T, dim=-1)  # [..., E]
    index = _best(scores.detach().clone(), top_k)
    chosen = scores.gather(-1, index)
    return index, (chosen / chosen.sum(dim=-1, keepdim=True) if renormalize else chosen) * scaling


def _sigmoid_scores(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [..., E], and the same plus the bias without a gradient."""
    dtype = promoted(x, weight)
    scores = torch.sigmoid(x.to(dtype) @ weight.to(dtype).T)
    # finite, so that an expert with bias -inf still differs from one already chosen
    return scores, (scores.detach() + bias.detach().to(dtype)).clamp_(min=torch.finfo(dtype).min)


def _best(scores: Tensor, count: int) -> Tensor:
    """The places of the `count` best scores, best first; `scores` is used up.

    torch.topk promises nothing about ties; argmax names the first of equals, so the lowest expert wins.
    """
    picks = []
    for _ in range(count):
        picks.append(scores.argmax(dim=-1, keepdim=True))
        scores.scatter_(-1, picks[-1], float("-inf"))
    return torch.cat(picks, dim=-1)


def _weights(scores: Tensor, index: Tensor, scaling: float, renormalize: bool) -> Tensor:
    """The chosen scores, over their sum when renormalising more than one."""
    chosen = scores.gather(-1, index)
    if renormalize and index.shape[-1] > 1:
        chosen = chosen / (chosen.sum(dim=-1, keepdim=True) + 1e-20)
    return chosen * scaling


def experts(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    w1: Tensor,
    w3: Tensor,
    w2: Tensor,
    activation: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """sum_k weight * w2[e] activation(w1[e] x, w3[e] x) over each token's experts e = index[:, k].

    Tokens are sorted by expert and each expert with tokens makes one product over its contiguous rows, so the
    number of rows in a product, and with it only the rounding, depends on the other tokens of the batch.
    """
    dtype = promoted(x, weight, w1)
    flat = index.reshape(-1)
    order = flat.argsort(stable=True)  # place in the sorted rows -> (token, choice)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=x.device))
    counts = flat.bincount(minlength=w1.shape[0]).tolist()
    rows = _Spread.apply(x.to(dtype), order, place.view(index.shape))  # [M*k, Din]
    hidden = activation(_Grouped.apply(rows, w1, counts), _Grouped.apply(rows, w3, counts))
    outputs = _Grouped.apply(hidden, w2, counts)
    return _Combine.apply(outputs, weight.to(dtype), place.view(index.shape)).to(x.dtype)


class _Spread(torch.autograd.Function):
    """x [M, D] to [M*k, D], token order[i] // k in row i; place [M, k] says where each copy went."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return x.index_select(0, order // place.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = ctx.saved_tensors
        dx = grads[0].index_select(0, place[:, 0])
        for choice in range(1, place.shape[1]):
            dx += grads[0].index_select(0, place[:, choice])
        return dx, None, None


class _Combine(torch.autograd.Function):
    """sum_k weight[:, k] * rows[place[:, k]]: rows [M*k, D], weight and place [M, k]; returns [M, D]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight, place)
        mixed = rows.index_select(0, place[:, 0]) * weight[:, :1]
        for choice in range(1, place.shape[1]):
            mixed.addcmul_(rows.index_select(0, place[:, choice]), weight[:, choice, None])
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (dmixed,) = grads
        rows, weight, place = ctx.saved_tensors
        drows, dweight = torch.empty_like(rows), torch.empty_like(weight)
        for choice in range(place.shape[1]):
            at = place[:, choice]
            drows.index_copy_(0, at, dmixed * weight[:, choice, None])
            dweight[:, choice] = (dmixed * rows.index_select(0, at)).sum(dim=-1)
        return drows, dweight, None


class _Grouped(torch.autograd.Function):
    """rows @ weight[e]^T for the counts[e] consecutive rows of each expert e; weight [E, out, in]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.spans = _spans(counts)
        made = rows.new_empty(rows.shape[0], weight.shape[1])
        for e, start, end in ctx.spans:
            torch.mm(rows[start:end], weight[e].to(rows.dtype).T, out=made[start:end])
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (dmade,) = grads
        rows, weight = ctx.saved_tensors
        drows = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        dweight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for e, start, end in ctx.spans:
            if drows is not None:
                torch.mm(dmade[start:end], weight[e].to(rows.dtype), out=drows[start:end])
            if dweight is not None:
                dweight[e] = dmade[start:end].T @ rows[start:end]
        return drows, dweight, None


def _spans(counts: list[int]) -> list[tuple[int, int, int]]:
    """(expert, first row, row past the last) of every expert that has rows."""
    spans, start = [], 0
    for e, count in enumerate(counts):
        if count:
            spans.append((e, start, start + count))
        start += count
    return spans
