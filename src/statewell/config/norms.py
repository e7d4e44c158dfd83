"""The norms a model is built with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LayerNormSpec:
    """LayerNorm with weight and bias (GPT-2)."""

    eps: float = 1e-5


@dataclass(frozen=True, kw_only=True)
class RMSNormSpec:
    """RMSNorm with weight; statistics in at least fp32."""

    eps: float = 1e-5


@dataclass(frozen=True, kw_only=True)
class OffsetRMSNormSpec:
    """RMSNorm that multiplies by 1 + weight (Qwen3-Next).

    The weight is kept as stored: adding 1 to it would round it, and a saved model could not be written back exactly.
    """

    eps: float = 1e-6


NormSpec = LayerNormSpec | RMSNormSpec | OffsetRMSNormSpec
