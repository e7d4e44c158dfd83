"""The mixers that keep something of every token: softmax attention in two forms, and latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from statewell.config.checks import require_flags, require_multiple, require_positive
from statewell.config.memory import MemorySpec, TensorSpec
from statewell.config.norms import OffsetRMSNormSpec, RMSNormSpec
from statewell.errors import ConfigError


def _key_value_cache(heads: int, head_dim: int, dtype: str) -> MemorySpec:
    return MemorySpec(
        tensors=tuple(TensorSpec(name=name, shape=(heads, head_dim), dtype=dtype, grows=True) for name in ("k", "v"))
    )


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Causal softmax attention over a growing cache of keys and values (GPT-2).

    heads, head_dim: query, key and value alike. bias: whether the projections carry one.
    """

    label: ClassVar[str] = "attention"
    heads: int
    head_dim: int
    bias: bool = True

    def __post_init__(self) -> None:
        require_positive(self, "heads", "head_dim")

    def memory(self, cache_dtype: str, state_dtype: str) -> MemorySpec:
        return _key_value_cache(self.heads, self.head_dim, cache_dtype)


@dataclass(frozen=True, kw_only=True)
class RotaryAttentionSpec:
    """Causal softmax attention with rotary positions, over a cache of rotated keys (Qwen3-Next, fla's hybrids).

    kv_heads: heads divided evenly among them. rotary_dim: leading channels of a head that are rotated, an even number.
    theta: base of the rotation's wavelengths. bias, output_bias: of the projections to q, k, v (and the gate), and of
    the one back. qk_norm: norm of each query and key head before the rotation. gate: a sigmoid gate on the heads'
    output.
    """

    label: ClassVar[str] = "rotary attention"
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    theta: float = 10000.0
    bias: bool = False
    output_bias: bool = False
    qk_norm: RMSNormSpec | OffsetRMSNormSpec | None = None
    gate: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "heads", "kv_heads", "head_dim", "rotary_dim")
        require_flags(self, "bias", "output_bias", "gate")
        require_multiple(self, "heads", "kv_heads")
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise ConfigError(
                f"RotaryAttentionSpec.rotary_dim is {self.rotary_dim}; it must be even and at most head_dim, "
                f"{self.head_dim}."
            )
        if not self.theta > 0:
            raise ConfigError(f"RotaryAttentionSpec.theta is {self.theta}; it must be above 0 (often 10000).")

    def memory(self, cache_dtype: str, state_dtype: str) -> MemorySpec:
        return _key_value_cache(self.kv_heads, self.head_dim, cache_dtype)


@dataclass(frozen=True, kw_only=True)
class MLASpec:
    """Multi-head latent attention without positions: one latent row per token, shared by all heads (Kimi Linear, K3).

    q_rank: rank of the query's down-projection, None for a direct one. kv_rank: the latent's width. nope_dim, rope_dim:
    a query head's two parts; the second meets a key part shared by all heads and is not rotated. gate: a sigmoid gate
    on the heads' output (K3).
    """

    label: ClassVar[str] = "MLA"
    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    gate: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "heads", "kv_rank", "nope_dim", "rope_dim", "value_dim")
        if self.q_rank is not None:
            require_positive(self, "q_rank")

    def memory(self, cache_dtype: str, state_dtype: str) -> MemorySpec:
        return MemorySpec(
            tensors=(
                TensorSpec(name="latent", shape=(self.kv_rank,), dtype=cache_dtype, grows=True),
                TensorSpec(name="rope", shape=(self.rope_dim,), dtype=cache_dtype, grows=True),
            )
        )
