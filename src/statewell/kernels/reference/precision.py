"""The one rule of precision here: at least float32, float64 when any input is; never a hard .float()."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def promoted(*tensors: Tensor) -> torch.dtype:
    """The dtype to compute in: the widest of float32 and the tensors' own."""
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
