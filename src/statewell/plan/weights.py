"""Every weight of a model by name and shape, and from that: parameters in total, active, compared; bytes as stored.

The names are those of `models.build(config).state_dict()`; a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch

from statewell.config.layers import (
    AttnResSpec,
    FFNSpec,
    LatentMoESpec,
    LayerNormSpec,
    LayerSpec,
    MLPSpec,
    ModelConfig,
    MoESpec,
)
from statewell.config.memory import DTYPE_BYTES
from statewell.config.mixers import (
    AttentionSpec,
    DeltaSpec,
    GatedDeltaSpec,
    KDASpec,
    LinearSpec,
    MixerSpec,
    MLASpec,
)
from statewell.errors import ConfigError, nearest

MXFP4_GROUP = 32  # weights that share one scale byte: 4 bits each + 8/32 = 4.25 bits
WEIGHT_BYTES = {**DTYPE_BYTES, "mxfp4": 0.5 + 1 / MXFP4_GROUP}


@dataclass(frozen=True)
class Weight:
    """One tensor. `used`: leading entries that one token uses, None for all (routed experts: top_k of them)."""

    name: str
    shape: tuple[int, ...]
    used: int | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def active(self) -> int:
        return self.count if self.used is None else self.used * math.prod(self.shape[1:])


def weights(config: ModelConfig) -> Iterator[Weight]:
    """All tensors of the model, in the order of the forward pass."""
    D = config.width
    yield Weight("embedding.weight", (config.vocab, D))
    if config.positions is not None:
        yield Weight("positions.weight", (config.positions, D))
    for index, layer in enumerate(config.layers):
        yield from _layer(f"blocks.{index}", layer, config)
    if isinstance(config.stream, AttnResSpec):
        yield from _site("output_site", D)
    yield from _norm("norm", config, D)
    if not config.tied:
        yield Weight("head.weight", (config.vocab, D))


def total(config: ModelConfig) -> int:
    """All parameters, the router's correction bias and K3's unused first AttnRes pair included."""
    return sum(weight.count for weight in weights(config))


def active(config: ModelConfig) -> int:
    """Parameters a token uses: total - input embedding (unless tied) - position table - experts not chosen."""
    return sum(weight.active for weight in weights(config) if not _is_lookup(weight, config))


def compared(config: ModelConfig) -> int:
    """Active parameters without embeddings and head: what `compare` matches."""
    return sum(
        weight.active for weight in weights(config) if weight.name.startswith(("blocks.", "norm.", "output_site."))
    )


def stored_bytes(config: ModelConfig, dtype: str | None = None) -> int:
    """Bytes of all weights: as released (`config.storage`), or every one in `dtype`."""
    if dtype is not None and dtype not in WEIGHT_BYTES:
        raise ConfigError(f"'{dtype}' is not a weights dtype; {nearest(dtype, WEIGHT_BYTES)}")
    storage = config.storage
    size = 0.0
    for weight in weights(config):
        entries, stored = weight.count, dtype
        if stored is None:
            last = weight.name.split(".")[-1]
            owner = weight.name.split(".")[-2]
            if ".experts." in weight.name and storage.experts is not None:
                stored = storage.experts
            else:
                stored = "fp32" if last in storage.fp32 or owner in storage.fp32 else storage.dtype
            if last == "A_log" and storage.a_log_entries is not None:
                entries = storage.a_log_entries
        size += entries * WEIGHT_BYTES[stored]
    return math.ceil(size)


def _is_lookup(weight: Weight, config: ModelConfig) -> bool:
    return weight.name == "positions.weight" or (weight.name == "embedding.weight" and not config.tied)


def _layer(path: str, layer: LayerSpec, config: ModelConfig) -> Iterator[Weight]:
    D = config.width
    if isinstance(config.stream, AttnResSpec):
        yield from _site(f"{path}.mixer_site", D)
    yield from _norm(f"{path}.mixer_norm", config, D)
    for weight in _mixer(layer.mixer, D):
        yield Weight(f"{path}.mixer.{weight.name}", weight.shape, weight.used)
    if isinstance(config.stream, AttnResSpec):
        yield from _site(f"{path}.ffn_site", D)
    yield from _norm(f"{path}.ffn_norm", config, D)
    for weight in _ffn(layer.ffn, D):
        yield Weight(f"{path}.ffn.{weight.name}", weight.shape, weight.used)


def _norm(path: str, config: ModelConfig, D: int) -> Iterator[Weight]:
    yield Weight(f"{path}.weight", (D,))
    if isinstance(config.norm, LayerNormSpec):
        yield Weight(f"{path}.bias", (D,))


def _site(path: str, D: int) -> Iterator[Weight]:
    yield Weight(f"{path}.norm_weight", (D,))
    yield Weight(f"{path}.query", (D,))


def _linear(name: str, out: int, inp: int, bias: bool = False) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", (out, inp))
    if bias:
        yield Weight(f"{name}.bias", (out,))


def _convs(taps: int, q: int, k: int, v: int) -> Iterator[Weight]:
    for name, width in (("q_conv", q), ("k_conv", k), ("v_conv", v)):
        yield Weight(f"{name}.weight", (width, taps))


def _glu(path: str, width: int, inp: int, out: int) -> Iterator[Weight]:
    yield from _linear(f"{path}gate_proj", width, inp)
    yield from _linear(f"{path}up_proj", width, inp)
    yield from _linear(f"{path}down_proj", out, width)


@singledispatch
def _mixer(spec: MixerSpec, D: int) -> Iterator[Weight]:
    raise ConfigError(f"no weights are known for a {type(spec).__name__}; register it in plan/weights.py.")


@_mixer.register
def _(spec: AttentionSpec, D: int) -> Iterator[Weight]:
    inner = spec.heads * spec.head_dim
    yield from _linear("qkv_proj", 3 * inner, D, spec.bias)
    yield from _linear("o_proj", D, inner, spec.bias)


@_mixer.register
def _(spec: LinearSpec, D: int) -> Iterator[Weight]:
    yield from _linear("q_proj", spec.heads * spec.key_dim, D)
    yield from _linear("k_proj", spec.heads * spec.key_dim, D)
    yield from _linear("v_proj", spec.heads * spec.value_dim, D)
    yield Weight("o_norm.weight", (spec.value_dim,))
    yield from _linear("o_proj", D, spec.heads * spec.value_dim)


@_mixer.register
def _(spec: DeltaSpec, D: int) -> Iterator[Weight]:
    keys, values = spec.heads * spec.key_dim, spec.heads * spec.value_dim
    yield from _linear("q_proj", keys, D)
    yield from _linear("k_proj", keys, D)
    yield from _linear("v_proj", values, D)
    yield from _convs(spec.conv, keys, keys, values)
    yield from _linear("b_proj", spec.heads, D)
    yield Weight("o_norm.weight", (spec.value_dim,))
    yield from _linear("o_proj", D, values)


@_mixer.register
def _(spec: GatedDeltaSpec, D: int) -> Iterator[Weight]:
    keys, values = spec.heads * spec.key_dim, spec.value_heads * spec.value_dim
    yield from _linear("q_proj", keys, D)
    yield from _linear("k_proj", keys, D)
    yield from _linear("v_proj", values, D)
    yield from _convs(spec.conv, keys, keys, values)
    yield from _linear("a_proj", spec.value_heads, D)
    yield from _linear("b_proj", spec.value_heads, D)
    yield Weight("A_log", (spec.value_heads,))
    yield Weight("dt_bias", (spec.value_heads,))
    yield from _linear("g_proj", values, D)
    yield Weight("o_norm.weight", (spec.value_dim,))
    yield from _linear("o_proj", D, values)


@_mixer.register
def _(spec: KDASpec, D: int) -> Iterator[Weight]:
    keys, values, rank = spec.heads * spec.key_dim, spec.heads * spec.value_dim, spec.value_dim
    yield from _linear("q_proj", keys, D)
    yield from _linear("k_proj", keys, D)
    yield from _linear("v_proj", values, D)
    yield from _convs(spec.conv, keys, keys, values)
    yield from _linear("f_a_proj", rank, D)
    yield from _linear("f_b_proj", keys, rank)
    yield from _linear("b_proj", spec.heads, D)
    yield Weight("A_log", (spec.heads,))
    yield Weight("dt_bias", (keys,))
    if spec.output_gate == "full":
        yield from _linear("g_proj", values, D)
    else:
        yield from _linear("g_a_proj", rank, D)
        yield from _linear("g_b_proj", values, rank)
    yield Weight("o_norm.weight", (spec.value_dim,))
    yield from _linear("o_proj", D, values)


@_mixer.register
def _(spec: MLASpec, D: int) -> Iterator[Weight]:
    queries = spec.heads * (spec.nope_dim + spec.rope_dim)
    if spec.q_rank is None:
        yield from _linear("q_proj", queries, D)
    else:
        yield from _linear("q_a_proj", spec.q_rank, D)
        yield Weight("q_a_norm.weight", (spec.q_rank,))
        yield from _linear("q_b_proj", queries, spec.q_rank)
    yield from _linear("kv_a_proj", spec.kv_rank + spec.rope_dim, D)
    yield Weight("kv_a_norm.weight", (spec.kv_rank,))
    yield from _linear("kv_b_proj", spec.heads * (spec.nope_dim + spec.value_dim), spec.kv_rank)
    if spec.gate:
        yield from _linear("g_proj", spec.heads * spec.value_dim, D)
    yield from _linear("o_proj", D, spec.heads * spec.value_dim)


@singledispatch
def _ffn(spec: FFNSpec, D: int) -> Iterator[Weight]:
    raise ConfigError(f"no weights are known for a {type(spec).__name__}; register it in plan/weights.py.")


@_ffn.register
def _(spec: MLPSpec, D: int) -> Iterator[Weight]:
    if spec.activation.gated:
        yield from _glu("", spec.width, D, D)
    else:
        yield from _linear("up_proj", spec.width, D, spec.bias)
        yield from _linear("down_proj", D, spec.width, spec.bias)


def _experts(spec: MoESpec | LatentMoESpec, D: int, inner: int) -> Iterator[Weight]:
    yield Weight("router.weight", (spec.experts, D))
    yield Weight("router.correction_bias", (spec.experts,))
    yield Weight("experts.w1", (spec.experts, spec.width, inner), spec.top_k)
    yield Weight("experts.w3", (spec.experts, spec.width, inner), spec.top_k)
    yield Weight("experts.w2", (spec.experts, inner, spec.width), spec.top_k)
    yield from _glu("shared.", spec.shared_width, D, D)


@_ffn.register
def _(spec: MoESpec, D: int) -> Iterator[Weight]:
    yield from _experts(spec, D, D)


@_ffn.register
def _(spec: LatentMoESpec, D: int) -> Iterator[Weight]:
    yield from _linear("latent_down_proj", spec.latent, D)
    yield from _experts(spec, D, spec.latent)
    yield Weight("latent_norm.weight", (spec.latent,))
    yield from _linear("latent_up_proj", D, spec.latent)
