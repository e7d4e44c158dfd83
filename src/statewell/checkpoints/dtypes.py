"""Weights' dtypes by the names users type."""

from __future__ import annotations

import torch

from statewell.errors import RequestError, nearest

_NAMED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def dtype_named(name: str) -> torch.dtype:
    """The dtype called `name`. Raises RequestError for any other."""
    if name not in _NAMED:
        raise RequestError(f"'{name}' is no dtype of weights; {nearest(name, _NAMED)}")
    return _NAMED[name]
