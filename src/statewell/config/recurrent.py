"""The mixers that keep one matrix per head: linear attention and the three delta rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from statewell.config.checks import require_flags, require_multiple, require_one_of, require_positive
from statewell.config.memory import MemorySpec, TensorSpec
from statewell.errors import ConfigError

# Entries a feature map makes of one entry of a head's key.
FEATURES = {"elu": 1, "relu": 1, "identity": 1, "elementwise_product": 1, "t2r": 1, "hedgehog": 2, "dpfp": 8}
LEARNED_MAPS = ("elementwise_product", "t2r", "hedgehog")
QK_ACTIVATIONS = ("silu", "relu", "elu", "identity")
QK_NORMS = ("l2", "sum")

FeatureMap = Literal["elu", "relu", "identity", "elementwise_product", "t2r", "hedgehog", "dpfp"]


def _tails(keys: int, values: int, conv: int | None, dtype: str) -> tuple[TensorSpec, ...]:
    """The last conv-1 raw inputs of the short convolutions on q, k and v; nothing without convolutions."""
    widths = {} if conv is None else {"q": keys, "k": keys, "v": values}
    return tuple(
        TensorSpec(name=f"{name}_tail", shape=((conv or 1) - 1, width), dtype=dtype) for name, width in widths.items()
    )


def _check_conv(spec: DeltaSpec | GatedDeltaSpec | KDASpec) -> None:
    require_flags(spec, "conv_bias", "neg_eigval")
    if spec.conv is not None:
        require_positive(spec, "conv")
    elif spec.conv_bias:
        raise ConfigError(f"{type(spec).__name__}.conv_bias is true without a convolution; set conv or drop the bias.")


@dataclass(frozen=True, kw_only=True)
class LinearSpec:
    """Linear attention: an additive memory read by φ(q) (Katharopoulos 2020, arXiv:2006.16236).

    kv_heads: heads divided evenly among them (None: as many); each still has a state of its own per head. feature_map:
    φ; elu is ELU+1, elementwise_product, t2r and hedgehog are learned, one for q and one for k unless tied_maps;
    hedgehog doubles the key's width, dpfp makes it eight times as wide. norm_q, norm_k: divide φ by its sum. normalize:
    divide what is read by the sum of its weights, which takes a vector z beside the state. norm_weight: whether the
    norm of the output has one.
    """

    label: ClassVar[str] = "linear attention"
    heads: int
    key_dim: int
    value_dim: int
    kv_heads: int | None = None
    feature_map: FeatureMap = "elu"
    tied_maps: bool = False
    norm_q: bool = False
    norm_k: bool = False
    normalize: bool = True
    norm_weight: bool = True

    def __post_init__(self) -> None:
        require_positive(self, "heads", "key_dim", "value_dim")
        require_flags(self, "tied_maps", "norm_q", "norm_k", "normalize", "norm_weight")
        require_one_of(self, "feature_map", tuple(FEATURES))
        if self.kv_heads is not None:
            require_positive(self, "kv_heads")
            require_multiple(self, "heads", "kv_heads")
        if self.tied_maps and self.feature_map not in LEARNED_MAPS:
            raise ConfigError(
                f"LinearSpec.tied_maps is true for '{self.feature_map}', which has no weights to share; leave it out."
            )

    @property
    def features(self) -> int:
        """Entries of a head's key after the feature map: the state's rows."""
        return FEATURES[self.feature_map] * self.key_dim

    def memory(self, cache_dtype: str, state_dtype: str) -> MemorySpec:
        state = TensorSpec(name="state", shape=(self.heads, self.features, self.value_dim), dtype=state_dtype)
        z = TensorSpec(name="z", shape=(self.heads, self.features), dtype=state_dtype)
        return MemorySpec(tensors=(state, z) if self.normalize else (state,))


@dataclass(frozen=True, kw_only=True)
class DeltaSpec:
    """The delta rule: a write corrects what its key retrieves (DeltaNet, arXiv:2406.06484).

    conv: taps of the short convolutions on q, k and v, None for none; conv_bias: whether they have one. beta: whether
    the write strength is learned, otherwise 1. neg_eigval: write strengths up to 2 instead of 1 (arXiv:2411.12537).
    gate: a SiLU gate on the normed output. qk_activation, qk_norm: of queries and keys; "elu" is ELU+1, "sum" divides
    by the sum of entries instead of the length.
    """

    label: ClassVar[str] = "delta rule"
    heads: int
    key_dim: int
    value_dim: int
    conv: int | None = 4
    conv_bias: bool = False
    beta: bool = True
    neg_eigval: bool = False
    gate: bool = False
    qk_activation: Literal["silu", "relu", "elu", "identity"] = "silu"
    qk_norm: Literal["l2", "sum"] = "l2"

    def __post_init__(self) -> None:
        require_positive(self, "heads", "key_dim", "value_dim")
        require_flags(self, "beta", "gate")
        _check_conv(self)
        require_one_of(self, "qk_activation", QK_ACTIVATIONS)
        require_one_of(self, "qk_norm", QK_NORMS)

    def memory(self, cache_dtype: str, state_dtype: str) -> MemorySpec:
        state = TensorSpec(name="state", shape=(self.heads, self.key_dim, self.value_dim), dtype=state_dtype)
        keys, values = self.heads * self.key_dim, self.heads * self.value_dim
        return MemorySpec(tensors=(state, *_tails(keys, values, self.conv, cache_dtype)))


@dataclass(frozen=True, kw_only=True)
class GatedDeltaSpec:
    """The delta rule after a scalar fade per head (Gated DeltaNet, arXiv:2412.06464).

    value_heads: a multiple of heads; consecutive value heads share a query/key head. conv, conv_bias, neg_eigval: as
    DeltaSpec's. gate: a SiLU gate on the normed output.
    """

    label: ClassVar[str] = "gated delta rule"
    heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int | None = 4
    conv_bias: bool = False
    neg_eigval: bool = False
    gate: bool = True

    def __post_init__(self) -> None:
        require_positive(self, "heads", "value_heads", "key_dim", "value_dim")
        require_flags(self, "gate")
        _check_conv(self)
        if self.value_heads % self.heads:
            raise ConfigError(
                f"GatedDeltaSpec has {self.value_heads} value heads over {self.heads} heads; make it a multiple."
            )

    def memory(self, cache_dtype: str, state_dtype: str) -> MemorySpec:
        state = TensorSpec(name="state", shape=(self.value_heads, self.key_dim, self.value_dim), dtype=state_dtype)
        keys, values = self.heads * self.key_dim, self.value_heads * self.value_dim
        return MemorySpec(tensors=(state, *_tails(keys, values, self.conv, cache_dtype)))


@dataclass(frozen=True, kw_only=True)
class KDASpec:
    """Kimi Delta Attention: the delta rule after a fade of each key channel by itself (arXiv:2510.26692).

    value_heads: a multiple of heads, None for as many; gates and write strengths are per value head. conv, conv_bias,
    neg_eigval: as DeltaSpec's. output_gate: "low_rank" (rank = value_dim, Kimi Linear) or "full" (Kimi K3); gate_bias:
    whether the second low-rank matrix has one (fla). lower_bound: the gate's floor in log retention, below 0 (K3: -5),
    or None for the unbounded softplus gate. The decay projection has rank value_dim.
    """

    label: ClassVar[str] = "KDA"
    heads: int
    key_dim: int
    value_dim: int
    conv: int | None = 4
    output_gate: Literal["low_rank", "full"] = "low_rank"
    lower_bound: float | None = None
    value_heads: int | None = None
    conv_bias: bool = False
    neg_eigval: bool = False
    gate_bias: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "heads", "key_dim", "value_dim")
        require_flags(self, "gate_bias")
        _check_conv(self)
        if self.value_heads is not None:
            require_positive(self, "value_heads")
            require_multiple(self, "value_heads", "heads")
        if self.output_gate not in ("low_rank", "full"):
            raise ConfigError(f"KDASpec.output_gate is {self.output_gate!r}; it must be 'low_rank' or 'full'.")
        if self.gate_bias and self.output_gate == "full":
            raise ConfigError("KDASpec.gate_bias is true for a full-rank output gate, which has none; leave it out.")
        if self.lower_bound is not None and not self.lower_bound < 0:
            raise ConfigError(
                f"KDASpec.lower_bound is {self.lower_bound}; a log retention's floor is below 0 (K3: -5), or None."
            )

    @property
    def states(self) -> int:
        """HV: value heads, each with a state, a gate and a write strength of its own."""
        return self.heads if self.value_heads is None else self.value_heads

    def memory(self, cache_dtype: str, state_dtype: str) -> MemorySpec:
        state = TensorSpec(name="state", shape=(self.states, self.key_dim, self.value_dim), dtype=state_dtype)
        keys, values = self.heads * self.key_dim, self.states * self.value_dim
        return MemorySpec(tensors=(state, *_tails(keys, values, self.conv, cache_dtype)))
