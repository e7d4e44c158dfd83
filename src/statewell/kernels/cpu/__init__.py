"""The compiled backend: float32 on the processor, C++ from csrc/ bound by `binding.py`, gradients by torch.library.

Every operation lives in the file it is listed from below. Where the compiled module is missing, every operation is
refused with the reason, and `reference` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from statewell.kernels.cpu import attention, binding, conv, delta, depth, experts, linear, mxfp4, norm, parts, route
from statewell.kernels.cpu.binding import instruction_sets, use_instruction_set

if TYPE_CHECKING:
    from statewell.kernels.registry import Call

__all__ = ["HANDED_ON", "OPS", "instruction_sets", "supports", "use_instruction_set"]

OPS: Mapping[str, Callable] = {
    "linear": linear.linear,
    "delta": delta.delta,
    "gated_delta": delta.gated_delta,
    "kda": delta.kda,
    "linear_step": linear.linear_step,
    "delta_step": delta.delta_step,
    "gated_delta_step": delta.gated_delta_step,
    "kda_step": delta.kda_step,
    "linear_step_": linear.linear_step_,
    "delta_step_": delta.delta_step_,
    "gated_delta_step_": delta.gated_delta_step_,
    "kda_step_": delta.kda_step_,
    "attention": attention.attention,
    "mla_absorbed": attention.mla_absorbed,
    "attention_kept": attention.attention_kept,
    "mla_kept": attention.mla_kept,
    "short_conv": conv.short_conv,
    "short_conv_step_": conv.short_conv_step_,
    "attn_res": depth.attn_res,
    "swiglu": parts.swiglu,
    "situ": parts.situ,
    "route": route.route,
    "experts": experts.experts,
    "l2norm": norm.l2norm,
    "rms_norm": norm.rms_norm,
    "gated_rms_norm": norm.gated_rms_norm,
    "decay_gate": parts.decay_gate,
    "bounded_gate": parts.bounded_gate,
    "mxfp4_dequantise": mxfp4.mxfp4_dequantise,
    "packed_experts": mxfp4.packed_experts,
}

# Forms of an operation that run as the reference does, though the operation is listed here.
HANDED_ON: Mapping[str, str] = {
    "attention": "several queries, packed ones and gradients",
    "mla_absorbed": "several queries, packed ones and gradients",
    "attention_kept": "rows with several queries, and gradients",
    "mla_kept": "rows with several queries, and gradients",
}


def supports(op: str, call: Call) -> str | None:
    """Why `op` cannot run here for this call, one plain clause; None when it can."""
    if binding.native is None:
        return binding.MISSING
    if call.device != "cpu":
        return f"its tensors are on {call.device}"
    if call.mixed:
        return "its tensors have different dtypes"
    if call.dtype is not torch.float32:
        return f"it computes in torch.float32 alone, this is {call.dtype}"
    if op == "packed_experts" and call.grad:
        return "packed experts have no compiled gradient"
    return conv.refusal(call.dims) if op.startswith("short_conv") else None
