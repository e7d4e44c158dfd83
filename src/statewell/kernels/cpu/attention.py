"""Attention of the newest token over a cache, compiled; longer queries and gradients go where the reference sends them.

The reference takes one query on a path of its own too; what it does with many is torch's fused kernel. Formulas:
csrc/attend.h.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statewell.kernels.cpu.binding import address, compiled, instruction_set, laid_out, needs_operator, threads
from statewell.kernels.reference import attention as reference


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None
) -> Tensor:
    """As the reference, in float32."""
    if q.shape[1] != 1 or cu_seqlens is not None or needs_operator(q, k, v):
        return reference.attention(q, k, v, scale, cu_seqlens, cu_seqlens_k)
    return _attend_one(q, k, v, None, scale)


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
    Kn = q.shape[-1] - rope.shape[-1]
    down = _per_head(q[..., :Kn], up[:, :Kn])
    shared = latent[:, :, None]  # one key head, whose keys are the values too
    context = _attend_one(torch.cat([down, q[..., Kn:]], dim=-1), shared, shared, rope, scale)
    return _per_head(context, up[:, Kn:].mT)


def _per_head(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, 1, H, in] through each head's own matrix, weight [H, in, out]; returns [B, 1, H, out]."""
    return torch.bmm(x[:, 0].transpose(0, 1), weight).transpose(0, 1)[:, None]


def _attend_one(q: Tensor, k: Tensor, v: Tensor, shared: Tensor | None, scale: float) -> Tensor:
    """q [B, 1, H, K+P] over k [B, S, Hk, K], v [B, S, Hk, V] and shared [B, S, P]; returns [B, 1, H, V]."""
    B, _, H, _ = q.shape
    (_, S, Hk, K), V, P = k.shape, v.shape[-1], 0 if shared is None else shared.shape[-1]
    o = q.new_empty(B, 1, H, V)
    q, (k, k_step), (v, v_step) = q.contiguous(), laid_out(k, 2), laid_out(v, 2)
    shared, shared_step = (None, 0) if shared is None else laid_out(shared, 1)
    compiled().attend_one(
        instruction_set(),
        threads(),
        address(q),
        address(k),
        address(v),
        address(shared),
        address(o),
        scale,
        B,
        S,
        H,
        Hk,
        K,
        P,
        V,
        S * k_step,
        k_step,
        S * v_step,
        v_step,
        S * shared_step,
        shared_step,
    )
    return o
