"""The small parts every model is made of. Weights keep their stored dtype; products run in the activations' dtype, so
that
bf16 weights on a CPU are multiplied in fp32. Values are set in `init.py`, never here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewell.config.layers import LayerNormSpec, RMSNormSpec
from statewell.kernels import ops
from statewell.memory.matrix import Tails
from statewell.memory.segments import Segments


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
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


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


class LayerNorm(nn.Module):
    """(x - mean) / std * weight + bias over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = empty(width)
        self.bias = empty(width)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class ShortConv(nn.Module):
    """A causal depthwise convolution and SiLU; weight [D, W]. The tokens before a segment come from its row's tail."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.weight = empty(width, taps)

    def forward(self, x: Tensor, name: str, tails: Tails, segments: Segments) -> Tensor:
        """x [1, T, D] -> [1, T, D], through the tail `name`."""
        return F.silu(tails.convolve(name, x, self.weight, segments))


def norm(spec: LayerNormSpec | RMSNormSpec, width: int) -> LayerNorm | RMSNorm:
    """The model's norm over `width` channels."""
    return LayerNorm(width, spec.eps) if isinstance(spec, LayerNormSpec) else RMSNorm(width, spec.eps)
