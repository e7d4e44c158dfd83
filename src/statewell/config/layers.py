"""What a model is: a stack of layers, each a mixer and an FFN, joined by a residual stream. Nothing is patterned: every
layer is written out, so that a reader or a planner never has to expand a rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from statewell.config.checks import require_flags, require_multiple, require_one_of, require_positive
from statewell.config.memory import MemorySpec
from statewell.config.mixers import MixerSpec
from statewell.config.norms import LayerNormSpec, NormSpec, OffsetRMSNormSpec, RMSNormSpec

__all__ = [
    "GELU",
    "INIT_STD",
    "Activation",
    "AttnResSpec",
    "FFNSpec",
    "LatentMoESpec",
    "LayerNormSpec",
    "LayerSpec",
    "MLPSpec",
    "MoESpec",
    "ModelConfig",
    "NormSpec",
    "OffsetRMSNormSpec",
    "PlainStreamSpec",
    "RMSNormSpec",
    "SiTU",
    "Storage",
    "StreamSpec",
    "SwiGLU",
]
from statewell.errors import ConfigError

# Initial standard deviation of our own sizes over width^-0.5; GPT-2's 0.02 at width 768 is 0.55 by this measure. Nano
# models after 200 steps of 4 x 256 tokens, with 0.02 and with 0.06 (about 0.5): GPT-2 3.83 and 3.64 held-out bits per
# byte, K3 3.38 and 3.13.
INIT_STD = 0.5


@dataclass(frozen=True, kw_only=True)
class GELU:
    """down(gelu(up x)), tanh form (GPT-2's gelu_new)."""

    gated: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class SwiGLU:
    """down(silu(gate x) * up x)."""

    gated: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class SiTU:
    """K3's bounded GLU: [beta tanh(gate/beta) sigmoid(gate)] * [linear_beta tanh(up/linear_beta)].

    linear_beta None leaves `up` untouched.
    """

    gated: ClassVar[bool] = True
    beta: float = 4.0
    linear_beta: float | None = 25.0


Activation = GELU | SwiGLU | SiTU


@dataclass(frozen=True, kw_only=True)
class MLPSpec:
    """A dense feed-forward network of inner `width`; `bias` on its projections (GPT-2)."""

    label: ClassVar[str] = "MLP"
    width: int
    activation: Activation
    bias: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "width")


def _check_experts(spec: MoESpec | LatentMoESpec) -> None:
    require_positive(spec, "experts", "top_k", "width", "shared_width")
    require_positive(spec, "groups", "top_groups")
    if spec.top_k > spec.experts:
        raise ConfigError(f"{type(spec).__name__} chooses {spec.top_k} of {spec.experts} experts; lower top_k.")
    if not spec.activation.gated:
        raise ConfigError(
            f"{type(spec).__name__} has a {type(spec.activation).__name__} activation; experts need a gated one."
        )
    if spec.groups > 1:
        _check_groups(spec)


def _check_groups(spec: MoESpec | LatentMoESpec) -> None:
    require_multiple(spec, "experts", "groups")
    size = spec.experts // spec.groups
    if size < 2:
        raise ConfigError(
            f"{type(spec).__name__} has {spec.groups} groups of {size} expert; a group is judged by its best two."
        )
    if spec.top_groups > spec.groups or spec.top_k > spec.top_groups * size:
        raise ConfigError(
            f"{type(spec).__name__} chooses {spec.top_k} experts from {spec.top_groups} of {spec.groups} groups of "
            f"{size}; there are not that many."
        )


@dataclass(frozen=True, kw_only=True)
class MoESpec:
    """Experts chosen per token by a router, beside a shared expert that every token takes (Kimi Linear, Qwen3-Next).

    width: of one routed expert. shared_width: of the shared MLP. scaling: of the routed sum, after renormalising.
    groups, top_groups: experts are chosen inside the best top_groups of so many equal groups. scores: "sigmoid", with a
    correction bias for the choice, or "softmax". shared_gate: a sigmoid gate on the shared expert, one number a token.
    """

    label: ClassVar[str] = "MoE"
    experts: int
    top_k: int
    width: int
    shared_width: int
    activation: Activation
    scaling: float = 1.0
    renormalize: bool = True
    groups: int = 1
    top_groups: int = 1
    scores: Literal["sigmoid", "softmax"] = "sigmoid"
    shared_gate: bool = False

    def __post_init__(self) -> None:
        _check_experts(self)
        require_flags(self, "shared_gate")
        require_one_of(self, "scores", ("sigmoid", "softmax"))
        if self.scores == "softmax" and self.groups > 1:
            raise ConfigError("MoESpec.groups is above 1 for softmax scores; only sigmoid routers choose by groups.")


@dataclass(frozen=True, kw_only=True)
class LatentMoESpec:
    """MoE whose routed experts work at a `latent` width between two projections, normed before the second (Kimi K3)."""

    label: ClassVar[str] = "LatentMoE"
    experts: int
    top_k: int
    width: int
    shared_width: int
    latent: int
    activation: Activation
    scaling: float = 1.0
    renormalize: bool = True
    groups: int = 1
    top_groups: int = 1

    def __post_init__(self) -> None:
        require_positive(self, "latent")
        _check_experts(self)


FFNSpec = MLPSpec | MoESpec | LatentMoESpec


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One layer: read the stream, mix tokens, add; read again, FFN, add."""

    mixer: MixerSpec
    ffn: FFNSpec


@dataclass(frozen=True, kw_only=True)
class PlainStreamSpec:
    """The ordinary residual stream: one running sum."""


@dataclass(frozen=True, kw_only=True)
class AttnResSpec:
    """Attention residuals: every read is a softmax mix of the group sums so far.

    group: how many layers (K3: 12), or sublayers where that is the unit, of which a layer has two; a group of one
    sublayer makes every sublayer's output a source of its own.
    """

    group: int
    unit: Literal["layers", "sublayers"] = "layers"

    def __post_init__(self) -> None:
        require_positive(self, "group")
        require_one_of(self, "unit", ("layers", "sublayers"))

    @property
    def sublayers(self) -> int:
        """Sublayers of one group."""
        return self.group if self.unit == "sublayers" else 2 * self.group


StreamSpec = PlainStreamSpec | AttnResSpec


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How the weights lie in the released file.

    dtype: of everything else. fp32: last names of tensors kept in fp32. experts: "mxfp4" (4.25 bits a weight) or None.
    a_log_entries: entries stored for A_log where the file pads it (K3: 128 for 96 heads), or None.
    """

    dtype: str = "fp32"
    fp32: tuple[str, ...] = ()
    experts: str | None = None
    a_log_entries: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A whole language model.

    name: as the user types it. architecture: one of the six, or of a family that only loads (kda, qwen3_next). vocab:
    token ids. width: D. positions: rows of a learned position table, or None. context: the model's own limit in tokens,
    or None. tied: the head is the embedding. init_std: of the normal initial weights.
    """

    name: str
    architecture: str
    vocab: int
    width: int
    layers: tuple[LayerSpec, ...]
    stream: StreamSpec
    norm: NormSpec
    positions: int | None = None
    context: int | None = None
    tied: bool = False
    init_std: float = 0.02
    storage: Storage = Storage()

    def __post_init__(self) -> None:
        require_positive(self, "vocab", "width")
        if not self.layers:
            raise ConfigError(f"{self.name} has no layers; a model needs at least one.")
        if self.positions is not None and self.context is not None and self.context > self.positions:
            raise ConfigError(
                f"{self.name} has a context of {self.context:,} but {self.positions:,} positions; lower it."
            )

    def memory(self, cache_dtype: str = "bf16", state_dtype: str = "fp32") -> MemorySpec:
        """What one row of all layers holds together."""
        return MemorySpec(
            tensors=tuple(
                tensor for layer in self.layers for tensor in layer.mixer.memory(cache_dtype, state_dtype).tensors
            )
        )
