"""Attention of the newest token over a cache, compiled; longer queries and gradients go where the reference sends them.

The reference takes one query on a path of its own too; what it does with many is torch's fused kernel. Formulas:
csrc/attend.h.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from statewell.kernels.cpu.binding import address, compiled, instruction_set, laid_out, needs_operator, threads
from statewell.kernels.pages import Kept
from statewell.kernels.reference import attention as reference


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None
) -> Tensor:
    """As the reference, in float32."""
    if q.shape[1] != 1 or cu_seqlens is not None or needs_operator(q, k, v):
        return reference.attention(q, k, v, scale, cu_seqlens, cu_seqlens_k)
    held_k, held_v = _one_page(k, 2), _one_page(v, 2)
    cache = _Cache(held_k.lying, held_v.lying, None, k.shape[2], k.shape[3], v.shape[3])
    return _attend(q[:, 0], cache, _alike(k), scale)[:, None]


def mla_absorbed(
    q: Tensor,
    latent: Tensor,
    rope: Tensor,
    up: Tensor,
    scale: float,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
) -> Tensor:
    """As the reference, in float32; the two products with `up` are torch's."""
    if q.shape[1] != 1 or cu_seqlens is not None or needs_operator(q, latent, rope, up):
        return reference.mla_absorbed(q, latent, rope, up, scale, cu_seqlens, cu_seqlens_k)
    # one key head, whose keys are the values too
    held, held_rope = _one_page(latent, 1), _one_page(rope, 1)
    cache = _Cache(held.lying, held.lying, held_rope.lying, 1, latent.shape[-1], latent.shape[-1])
    return _absorbed(q[:, 0], up, cache, _alike(latent), rope.shape[-1], scale)[:, None]


def attention_kept(q: Tensor, k: Kept, v: Kept, lengths: tuple[int, ...], scale: float) -> Tensor:
    """As the reference, in float32: the rows with one query together, each of the others by itself."""

    def newest(q: Tensor, k: Kept, v: Kept) -> Tensor:
        cache = _Cache(_paged(k), _paged(v), None, k.shape[0], k.shape[1], v.shape[1])
        return _attend(q, cache, _rows(k), scale)

    def rest(q: Tensor, lengths: tuple[int, ...], k: Kept, v: Kept) -> Tensor:
        return reference.attention_kept(q, k, v, lengths, scale)

    return _newest_together(newest, rest, q, lengths, (k, v))


def mla_kept(q: Tensor, latent: Kept, rope: Kept, up: Tensor, lengths: tuple[int, ...], scale: float) -> Tensor:
    """As the reference, in float32: the rows with one query together, each of the others by itself."""

    def newest(q: Tensor, latent: Kept, rope: Kept) -> Tensor:
        shared, width = _paged(latent), latent.shape[0]
        cache = _Cache(shared, shared, _paged(rope), 1, width, width)
        return _absorbed(q, up, cache, _rows(latent), rope.shape[0], scale)

    def rest(q: Tensor, lengths: tuple[int, ...], latent: Kept, rope: Kept) -> Tensor:
        return reference.mla_kept(q, latent, rope, up, lengths, scale)

    return _newest_together(newest, rest, q, lengths, (latent, rope))


def _newest_together(
    newest: Callable[..., Tensor],
    rest: Callable[..., Tensor],
    q: Tensor,
    lengths: tuple[int, ...],
    kept: Sequence[Kept],
) -> Tensor:
    """q [1, T, H, K], `lengths` queries of each row -> [1, T, H, V]: all rows with one query by `newest` at once."""
    if any(part.dtype is not torch.float32 for part in kept) or needs_operator(q):
        return rest(q, lengths, *kept)
    single = [n for n, length in enumerate(lengths) if length == 1]
    if len(single) == len(lengths):
        return newest(q[0], *kept)[None]
    parts = list(q.split(lengths, dim=1))
    made = [
        part if n in single else rest(part, (part.shape[1],), *(x.only([n]) for x in kept))
        for n, part in enumerate(parts)
    ]
    if single:
        together = newest(torch.cat([parts[n][0] for n in single]), *(x.only(single) for x in kept))
        for n, o in zip(single, together, strict=True):
            made[n] = o[None, None]
    return torch.cat(made, dim=1)


class _Lying(NamedTuple):
    """One kept tensor: the pages of its rows, its place in a page and the step between tokens, in elements."""

    pages: array[int]
    at: int
    step: int


class _Rows(NamedTuple):
    """Tokens of each row, pages of each row, tokens of each page."""

    lengths: array[int]
    pages: int
    page_tokens: int


class _Cache(NamedTuple):
    """What is attended: keys, values, perhaps a key part shared by the heads; key heads, key and value width."""

    k: _Lying
    v: _Lying
    shared: _Lying | None
    heads: int
    key: int
    value: int


def _paged(kept: Kept) -> _Lying:
    return _Lying(kept.pages.addresses, kept.at, kept.width)


def _rows(kept: Kept) -> _Rows:
    return _Rows(array("q", kept.pages.lengths), kept.pages.most, kept.pages.tokens)


class _Held(NamedTuple):
    """A tensor [B, S, ...] as one page per row; it lives as long as this."""

    tensor: Tensor
    lying: _Lying


def _one_page(x: Tensor, axes: int) -> _Held:
    x, step = laid_out(x, axes)
    B, S = x.shape[:2]
    return _Held(x, _Lying(array("q", [x.data_ptr() + b * S * step * x.element_size() for b in range(B)]), 0, step))


def _alike(x: Tensor) -> _Rows:
    """The rows of x [B, S, ...], one page each."""
    B, S = x.shape[:2]
    return _Rows(array("q", [S] * B), 1, S)


def _absorbed(q: Tensor, up: Tensor, cache: _Cache, rows: _Rows, P: int, scale: float) -> Tensor:
    """q [N, H, Kn+P] down to the latents, over them and up again: [N, H, V]."""
    Kn = q.shape[-1] - P
    down = _per_head(q[..., :Kn], up[:, :Kn])
    context = _attend(torch.cat([down, q[..., Kn:]], dim=-1), cache, rows, scale)
    return _per_head(context, up[:, Kn:].mT)


def _per_head(x: Tensor, weight: Tensor) -> Tensor:
    """x [N, H, in] through each head's own matrix, weight [H, in, out]; returns [N, H, out]."""
    return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)


def _attend(q: Tensor, cache: _Cache, rows: _Rows, scale: float) -> Tensor:
    """q [N, H, K+P], one for each row, over all the row's tokens; returns [N, H, V]."""
    N, H, width = q.shape
    q, o = q.contiguous(), q.new_empty(N, H, cache.value)
    shared = cache.shared or _Lying(array("q"), 0, 0)
    compiled().attend_one(
        instruction_set(),
        threads(),
        address(q),
        cache.k.pages.buffer_info()[0],
        cache.v.pages.buffer_info()[0],
        shared.pages.buffer_info()[0],
        cache.k.at,
        cache.v.at,
        shared.at,
        rows.lengths.buffer_info()[0],
        address(o),
        scale,
        N,
        rows.pages,
        rows.page_tokens,
        H,
        cache.heads,
        cache.key,
        width - cache.key,
        cache.value,
        cache.k.step,
        cache.v.step,
        shared.step,
    )
    return o
