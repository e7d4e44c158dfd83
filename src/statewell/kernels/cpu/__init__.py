"""The compiled backend: float32 on the processor, C++ from csrc/ bound by `binding.py`, gradients by torch.library.

`delta.py` and `parts.py` hold the operations. Where the compiled module is missing, every operation is refused with
the reason, and `reference` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from statewell.kernels.cpu import binding, delta

if TYPE_CHECKING:
    from statewell.kernels.registry import Call

OPS: Mapping[str, Callable] = {
    "linear": delta.linear,
    "delta": delta.delta,
    "gated_delta": delta.gated_delta,
    "kda": delta.kda,
    "linear_step": delta.linear_step,
    "delta_step": delta.delta_step,
    "gated_delta_step": delta.gated_delta_step,
    "kda_step": delta.kda_step,
}


def supports(op: str, call: Call) -> str | None:
    """Why `op` cannot run here for this call, one plain clause; None when it can."""
    if binding.native is None:
        return binding.MISSING
    if call.device != "cpu":
        return f"its tensors are on {call.device}"
    if call.mixed:
        return "its tensors have different dtypes"
    return None if call.dtype is torch.float32 else f"it computes in torch.float32 alone, this is {call.dtype}"
