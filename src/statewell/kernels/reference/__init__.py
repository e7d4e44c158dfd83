"""The backend that defines the operations: plain torch, any float dtype and device, differentiable."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from statewell.kernels.reference import (
    attention,
    chunkwise,
    chunkwise_linear,
    conv,
    depth,
    moe,
    mxfp4,
    parts,
    recurrent,
)

OPS: Mapping[str, Callable] = {
    "linear": chunkwise_linear.linear_chunk,
    "delta": chunkwise.delta_chunk,
    "gated_delta": chunkwise.gated_delta_chunk,
    "kda": chunkwise.kda_chunk,
    "linear_step": recurrent.linear_step,
    "delta_step": recurrent.delta_step,
    "gated_delta_step": recurrent.gated_delta_step,
    "kda_step": recurrent.kda_step,
    "attention": attention.attention,
    "mla": attention.mla,
    "mla_absorbed": attention.mla_absorbed,
    "short_conv": conv.short_conv,
    "attn_res": depth.attn_res,
    "swiglu": parts.swiglu,
    "situ": parts.situ,
    "route": moe.route,
    "route_grouped": moe.route_grouped,
    "route_softmax": moe.route_softmax,
    "experts": moe.experts,
    "l2norm": parts.l2norm,
    "rms_norm": parts.rms_norm,
    "gated_rms_norm": parts.gated_rms_norm,
    "decay_gate": parts.decay_gate,
    "bounded_gate": parts.bounded_gate,
    "mxfp4_dequantise": mxfp4.mxfp4_dequantise,
    "mxfp4_quantise": mxfp4.mxfp4_quantise,
    "packed_experts": mxfp4.packed_experts,
}


def supports(op: str, call: object) -> str | None:
    """Never a reason to refuse."""
    return None
