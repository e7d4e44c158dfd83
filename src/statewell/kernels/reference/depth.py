"""Attention residuals: each token picks its layer input from earlier layers' outputs by a softmax over depth.

The sources are read in place and never stacked: a pass keeps three numbers per token and source beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewell.kernels.reference.precision import promoted


def attn_res(sources: Sequence[Tensor], norm_weight: Tensor, proj_weight: Tensor, eps: float) -> Tensor:
    """sum_s a_s v_s with a = softmax_s(<v_s * rsqrt(mean(v_s^2) + eps), norm_weight * proj_weight>).

    The values are the sources as they are, not normed. One source is returned itself: its weight is 1.
    """
    if len(sources) == 1:
        return sources[0]
    dtype = promoted(*sources, norm_weight, proj_weight)
    query = norm_weight.to(dtype) * proj_weight.to(dtype)
    shape = sources[-1].shape
    return _Mix.apply(query, eps, *(v.reshape(-1, shape[-1]) for v in sources)).view(shape)


class _Mix(torch.autograd.Function):
    """Sources [M, D] under query [D]; returns [M, D]. Gradients by hand, so that no normed copy is kept."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, eps: float, *sources: Tensor) -> Tensor:
        wide = [v.to(query.dtype) for v in sources]
        norms = torch.stack([torch.linalg.vector_norm(v, dim=-1) for v in wide])  # [S, M]
        r = norms.square_().div_(query.shape[0]).add_(eps).rsqrt_()
        d = torch.stack([v @ query for v in wide])
        a = (r * d).softmax(dim=0)
        mixed = wide[0] * a[0, :, None]
        for v, share in zip(wide[1:], a[1:], strict=True):
            mixed.addcmul_(v, share[:, None])
        ctx.save_for_backward(query, r, d, a, *sources)
        return mixed.to(sources[-1].dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, r, d, a, *sources = ctx.saved_tensors
        dmixed = grads[0].to(query.dtype)
        wide = [v.to(query.dtype) for v in sources]
        da = torch.stack([(dmixed * v).sum(dim=-1) for v in wide])  # [S, M]
        dlogit = a * (da - (a * da).sum(dim=0))
        along_query = dlogit * r
        along_value = dlogit * d * r.pow(3) / -query.shape[0]  # through the norm
        dquery = torch.zeros_like(query)
        dsources: list[Tensor] = []
        for s, v in enumerate(wide):
            dv = dmixed * a[s, :, None]
            dv.addcmul_(v, along_value[s, :, None]).addcmul_(along_query[s, :, None], query)
            dsources.append(dv.to(sources[s].dtype))
            dquery += v.T @ along_query[s]
        return dquery, None, *dsources
