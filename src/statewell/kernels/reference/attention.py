"""Causal softmax attention over kept keys and values, and MLA, whose kept rows are compressed latents.

`attention_direct` is the definition; `attention` the same thing without a [T, S] score matrix. MLA comes
expanded (keys and values of every head are made from the latents, for training) and absorbed (the latents
themselves are attended, for decoding). Everything is computed in at least float32. No positions, no storage.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from statewell.kernels.pages import Kept
from statewell.kernels.reference.packing import lengths_of, over_segments
from statewell.kernels.reference.precision import promoted

BLOCK_SCORES = 1 << 21  # scores or mask entries held at once, per row: 8 MiB in float32


def attention_direct(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:
    """softmax(mask(q k^T * scale)) v, all scores at once: the definition, which the fast form must match.

    Shapes as in `ops.attention`. Oracle: tests/kernels/test_attention.py.
    """
    if cu_seqlens is not None:
        key_bounds = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
        rows = [
            attention_direct(q[:, a:b], k[:, c:d], v[:, c:d], scale)
            for a, b, c, d in zip(
                cu_seqlens[:-1].tolist(),
                cu_seqlens[1:].tolist(),
                key_bounds[:-1].tolist(),
                key_bounds[1:].tolist(),
                strict=True,
            )
        ]
        return torch.cat(rows, dim=1)
    dtype = promoted(q, k, v)
    T, S, group = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    k, v = k.to(dtype).repeat_interleave(group, dim=2), v.to(dtype).repeat_interleave(group, dim=2)
    scores = torch.einsum("bthk,bshk->bhts", q.to(dtype), k) * scale
    hidden = torch.ones(T, S, dtype=torch.bool, device=q.device).triu(S - T + 1)  # keys after the query's own token
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("bhts,bshv->bthv", weights, v).to(q.dtype)


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None
) -> Tensor:
    """Causal attention without a [T, S] score matrix; shapes as in `ops.attention`."""
    dtype = promoted(q, k, v)
    out, q, k, v = q.dtype, q.to(dtype), k.to(dtype), v.to(dtype)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _attend(q, k, v, scale)

    if cu_seqlens is None:
        return attend(q, k, v).to(out)
    lengths = lengths_of(cu_seqlens)
    key_lengths = lengths if cu_seqlens_k is None else lengths_of(cu_seqlens_k)
    return over_segments(attend, q, (k, v), lengths, key_lengths).to(out)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """One rectangle: q [B, T, H, K] are the last T of the S tokens of k [B, S, Hk, K] and v [B, S, Hk, V]."""
    T, S, K, V = q.shape[1], k.shape[1], q.shape[-1], v.shape[-1]
    if T == 1:
        return _attend_one(q, k, v, scale)
    if K != V:
        # the fused kernel wants one width, else torch holds all [T, S] scores; zero columns change nothing
        q, k, v = (F.pad(x, (0, max(K, V) - x.shape[-1])) for x in (q, k, v))
    spoiled = _not_a_number(q, k[:, S - T :])
    if T == S:
        return _fused(q, k, v, scale, causal=True)[..., :V] + spoiled
    step = max(16, BLOCK_SCORES // S)
    rows = []
    for start in range(0, T, step):
        block = q[:, start : start + step]
        seen = S - T + start + block.shape[1]
        mask = torch.ones(block.shape[1], seen, dtype=torch.bool, device=q.device).tril(seen - block.shape[1])
        rows.append(_fused(block, k[:, :seen], v[:, :seen], scale, mask=mask))
    return torch.cat(rows, dim=1)[..., :V] + spoiled


@torch.no_grad()
def _not_a_number(q: Tensor, own: Tensor) -> Tensor:
    """NaN for a query whose score with its own key is not finite, else 0: [B, T, H, 1].

    torch's kernel takes a row of scores that are all NaN for one that may see nothing, and answers 0.
    """
    score = torch.einsum("bthgk,bthk->bthg", q.unflatten(2, (own.shape[2], -1)), own)
    return (0.0 * score).flatten(2)[..., None]


def _attend_one(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The newest token alone sees everything: no mask, and the heads that share a key become its queries."""
    B, _, H, K = q.shape
    Hk = k.shape[2]
    grouped = q.reshape(B, Hk, H // Hk, K)
    o = F.scaled_dot_product_attention(grouped, k.transpose(1, 2), v.transpose(1, 2), scale=scale)
    return o.reshape(B, 1, H, -1)


def _fused(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """torch's kernel in its own layout [B, H, T, K]; a shared key head is not copied."""
    o = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return o.transpose(1, 2)


def mla(q: Tensor, latent: Tensor, rope: Tensor, up: Tensor, scale: float, cu_seqlens: Tensor | None) -> Tensor:
    """MLA expanded: `up` makes each head's key and value from the latent; `rope` is a key part shared by all.

    Source: Kimi K3 and Kimi Linear released modelling code; arXiv:2405.04434 section 2.1.
    """
    dtype = promoted(q, latent, up)
    H, P = up.shape[0], rope.shape[-1]
    Kn = q.shape[-1] - P
    made = (latent.to(dtype) @ up.to(dtype).flatten(0, 1).T).unflatten(-1, (H, -1))  # [B, T, H, Kn+V]
    k, v = made.split([Kn, up.shape[1] - Kn], dim=-1)
    shared = rope.to(dtype)[:, :, None].expand(-1, -1, H, -1)
    k = torch.cat([k, shared], dim=-1)
    return attention(q.to(dtype), k, v, scale, cu_seqlens, None).to(q.dtype)


def mla_absorbed(
    q: Tensor,
    latent: Tensor,
    rope: Tensor,
    up: Tensor,
    scale: float,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
) -> Tensor:
    """MLA absorbed: queries go down to the latents, attend the S kept ones, and come back through `up`.

    The same numbers as `mla` up to rounding: <q, Wk c> = <Wk^T q, c>, and sum_s a_s (Wv c_s) = Wv (sum_s a_s
    c_s).
    """
    dtype = promoted(q, latent, up)
    out, q, latent, rope, up = q.dtype, q.to(dtype), latent.to(dtype), rope.to(dtype), up.to(dtype)
    Kn = q.shape[-1] - rope.shape[-1]
    q = torch.cat([_per_head(q[..., :Kn], up[:, :Kn]), q[..., Kn:]], dim=-1)  # [B, T, H, R+P]

    def attend(q: Tensor, latent: Tensor, rope: Tensor) -> Tensor:
        return _attend_latent(q, latent, rope, scale)

    if cu_seqlens is None:
        context = attend(q, latent, rope)
    else:
        lengths = lengths_of(cu_seqlens)
        key_lengths = lengths if cu_seqlens_k is None else lengths_of(cu_seqlens_k)
        context = over_segments(attend, q, (latent, rope), lengths, key_lengths)
    return _per_head(context, up[:, Kn:].mT).to(out)


def attention_kept(q: Tensor, k: Kept, v: Kept, lengths: tuple[int, ...], scale: float) -> Tensor:
    """`attention` of each row's last queries over all it keeps; shapes as in `ops.attention_kept`."""
    rows = enumerate(q.split(lengths, dim=1))
    made = [attention(part, k.row(n)[None], v.row(n)[None], scale, None, None) for n, part in rows]
    return torch.cat(made, dim=1)


def mla_kept(q: Tensor, latent: Kept, rope: Kept, up: Tensor, lengths: tuple[int, ...], scale: float) -> Tensor:
    """`mla_absorbed` of each row's last queries over all it keeps; shapes as in `ops.mla_kept`."""
    rows = enumerate(q.split(lengths, dim=1))
    made = [mla_absorbed(part, latent.row(n)[None], rope.row(n)[None], up, scale, None, None) for n, part in rows]
    return torch.cat(made, dim=1)


def _per_head(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, T, H, in] through each head's own matrix, weight [H, in, out]; returns [B, T, H, out]."""
    B, T = x.shape[:2]
    return torch.bmm(x.flatten(0, 1).transpose(0, 1), weight).transpose(0, 1).unflatten(0, (B, T))


def _attend_latent(q: Tensor, latent: Tensor, rope: Tensor, scale: float) -> Tensor:
    """All heads of q [B, T, H, R+P] attend one latent [B, S, R] and rope [B, S, P]; returns [B, T, H, R].

    The heads are rows of one product, so the latents are read in place, never copied per head.
    """
    B, T, H, _ = q.shape
    S, R = latent.shape[1], latent.shape[2]
    if q.numel() == 0:
        return q[..., :R]
    step = max(1, BLOCK_SCORES // (S * H))
    rows = []
    for start in range(0, T, step):
        block = q[:, start : start + step]
        t, seen = block.shape[1], S - T + min(T, start + step)
        flat = block.reshape(B, t * H, -1) * scale
        scores = torch.baddbmm(flat[..., :R] @ latent[:, :seen].mT, flat[..., R:], rope[:, :seen].mT)  # [B, t*H, seen]
        if t > 1:
            # only the block's own tokens can lie in the future
            hidden = torch.ones(t, t, dtype=torch.bool, device=q.device).triu(1)[:, None]
            own = scores.view(B, t, H, seen)[..., seen - t :]
            own.masked_fill_(hidden, float("-inf"))
        rows.append((scores.softmax(dim=-1) @ latent[:, :seen]).view(B, t, H, R))
    return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
