"""What each token mixer is: its heads, its sizes, its gates, and the memory it keeps. In the order GPT-2 to Kimi K3.

Sizes are counts of channels. Every spec answers `memory(cache_dtype, state_dtype)`: what one row of it holds. Growing
caches and convolution tails are kept in the cache dtype, matrix states in the state dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from statewell.config.memory import MemorySpec, TensorSpec
from statewell.errors import ConfigError


def require_positive(spec: object, *names: str) -> None:
    """Raise ConfigError unless each named field of `spec` is a whole number of at least 1."""
    for name in names:
        value = getattr(spec, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{type(spec).__name__}.{name} is {value!r}; it must be a whole number of at least 1.")


def _tails(widths: dict[str, int], conv: int, dtype: str) -> tuple[TensorSpec, ...]:
    """The last conv-1 raw inputs of each short convolution."""
    return tuple(
        TensorSpec(name=f"{name}_tail", shape=(conv - 1, width), dtype=dtype) for name, width in widths.items()
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
        shape = (self.heads, self.head_dim)
        return MemorySpec(
            tensors=tuple(TensorSpec(name=name, shape=shape, dtype=cache_dtype, grows=True) for name in ("k", "v"))
        )


@dataclass(frozen=True, kw_only=True)
class LinearSpec:
    """Linear attention with φ = ELU+1 and its normaliser z (Katharopoulos 2020, arXiv:2006.16236)."""

    label: ClassVar[str] = "linear attention"
    heads: int
    key_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        require_positive(self, "heads", "key_dim", "value_dim")

    def memory(self, cache_dtype: str, state_dtype: str) -> MemorySpec:
        return MemorySpec(
            tensors=(
                TensorSpec(name="state", shape=(self.heads, self.key_dim, self.value_dim), dtype=state_dtype),
                TensorSpec(name="z", shape=(self.heads, self.key_dim), dtype=state_dtype),
            )
        )


@dataclass(frozen=True, kw_only=True)
class DeltaSpec:
    """The delta rule: a write corrects what its key retrieves (DeltaNet, arXiv:2406.06484).

    conv: taps of the short convolutions on q, k and v.
    """

    label: ClassVar[str] = "delta rule"
    heads: int
    key_dim: int
    value_dim: int
    conv: int = 4

    def __post_init__(self) -> None:
        require_positive(self, "heads", "key_dim", "value_dim", "conv")

    def memory(self, cache_dtype: str, state_dtype: str) -> MemorySpec:
        state = TensorSpec(name="state", shape=(self.heads, self.key_dim, self.value_dim), dtype=state_dtype)
        key_width = self.heads * self.key_dim
        widths = {"q": key_width, "k": key_width, "v": self.heads * self.value_dim}
        return MemorySpec(tensors=(state, *_tails(widths, self.conv, cache_dtype)))


@dataclass(frozen=True, kw_only=True)
class GatedDeltaSpec:
    """The delta rule after a scalar fade per head (Gated DeltaNet, arXiv:2412.06464).

    value_heads: a multiple of heads; consecutive value heads share a query/key head.
    """

    label: ClassVar[str] = "gated delta rule"
    heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int = 4

    def __post_init__(self) -> None:
        require_positive(self, "heads", "value_heads", "key_dim", "value_dim", "conv")
        if self.value_heads % self.heads:
            raise ConfigError(
                f"GatedDeltaSpec has {self.value_heads} value heads over {self.heads} heads; make it a multiple."
            )

    def memory(self, cache_dtype: str, state_dtype: str) -> MemorySpec:
        state = TensorSpec(name="state", shape=(self.value_heads, self.key_dim, self.value_dim), dtype=state_dtype)
        key_width = self.heads * self.key_dim
        widths = {"q": key_width, "k": key_width, "v": self.value_heads * self.value_dim}
        return MemorySpec(tensors=(state, *_tails(widths, self.conv, cache_dtype)))


@dataclass(frozen=True, kw_only=True)
class KDASpec:
    """Kimi Delta Attention: the delta rule after a fade of each key channel by itself (arXiv:2510.26692).

    output_gate: "low_rank" (rank = value_dim, Kimi Linear) or "full" (Kimi K3). lower_bound: the gate's floor in log
    retention, below 0 (K3: -5), or None for the unbounded softplus gate. The decay projection has rank value_dim.
    """

    label: ClassVar[str] = "KDA"
    heads: int
    key_dim: int
    value_dim: int
    conv: int = 4
    output_gate: Literal["low_rank", "full"] = "low_rank"
    lower_bound: float | None = None

    def __post_init__(self) -> None:
        require_positive(self, "heads", "key_dim", "value_dim", "conv")
        if self.output_gate not in ("low_rank", "full"):
            raise ConfigError(f"KDASpec.output_gate is {self.output_gate!r}; it must be 'low_rank' or 'full'.")
        if self.lower_bound is not None and not self.lower_bound < 0:
            raise ConfigError(
                f"KDASpec.lower_bound is {self.lower_bound}; a log retention's floor is below 0 (K3: -5), or None."
            )

    def memory(self, cache_dtype: str, state_dtype: str) -> MemorySpec:
        state = TensorSpec(name="state", shape=(self.heads, self.key_dim, self.value_dim), dtype=state_dtype)
        key_width = self.heads * self.key_dim
        widths = {"q": key_width, "k": key_width, "v": self.heads * self.value_dim}
        return MemorySpec(tensors=(state, *_tails(widths, self.conv, cache_dtype)))


@dataclass(frozen=True, kw_only=True)
class MLASpec:
    """Multi-head latent attention without positions: one latent row per token, shared by all heads (Kimi Linear, K3).

    q_rank: rank of the query's down-projection, None for a direct one. kv_rank: the latent's width. nope_dim, rope_dim:
    a query head's two parts; the second meets a key part shared by all heads and is not rotated. gate: a sigmoid gate
    on
    the heads' output (K3).
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


MixerSpec = AttentionSpec | LinearSpec | DeltaSpec | GatedDeltaSpec | KDASpec | MLASpec
