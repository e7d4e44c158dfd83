"""The small parts every model is made of. Weights keep their stored dtype; products run in the activations' dtype, so
that bf16 weights on a CPU are multiplied in fp32. Values are set in `init.py`, never here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewell.config.norms import LayerNormSpec, NormSpec, OffsetRMSNormSpec, RMSNormSpec
from statewell.kernels import ops
from statewell.kernels.product import product


def empty(*shape: int) -> nn.Parameter:
    """A parameter without values yet."""
    return nn.Parameter(torch.empty(*shape))


def promoted(x: Tensor) -> Tensor:
    """x in at least fp32: what gates and write strengths are computed in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Linear(nn.Module):
    """x [..., inp] -> [..., out]; weight [out, inp], bias [out] or none."""

    def __init__(self, inp: int, out: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = empty(out, inp)
        self.bias = empty(out) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class Embedding(nn.Module):
    """ids [...] -> rows of weight [rows, D], in `dtype`."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = empty(rows, width)

    def forward(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return F.embedding(ids, self.weight).to(dtype)


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension; statistics in at least fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = empty(width)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight.to(x.dtype), self.eps)


class OffsetRMSNorm(nn.Module):
    """x / rms(x) * (1 + weight) over the last dimension, all in at least fp32. Source: Qwen3-Next release."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = empty(width)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x32 = promoted(x)
        return ops.rms_norm(x32, 1 + self.weight.to(x32.dtype), self.eps).to(x.dtype)


class UnweightedRMSNorm(nn.Module):
    """x / rms(x) over the last dimension; statistics in at least fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, x.new_ones(x.shape[-1]), self.eps)


class LayerNorm(nn.Module):
    """(x - mean) / std * weight + bias over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = empty(width)
        self.bias = empty(width)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


_NORMS: dict[type, Callable[[int, float], nn.Module]] = {
    LayerNormSpec: LayerNorm,
    RMSNormSpec: RMSNorm,
    OffsetRMSNormSpec: OffsetRMSNorm,
}


def norm(spec: NormSpec, width: int) -> nn.Module:
    """The norm `spec` describes, over `width` channels."""
    return _NORMS[type(spec)](width, spec.eps)
