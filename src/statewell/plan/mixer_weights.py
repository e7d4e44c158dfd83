"""The tensors of every kind of mixer, as `models/mixers` names them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch

from statewell.config.mixers import (
    AttentionSpec,
    DeltaSpec,
    GatedDeltaSpec,
    KDASpec,
    LinearSpec,
    MixerSpec,
    MLASpec,
    RotaryAttentionSpec,
)
from statewell.errors import ConfigError
from statewell.plan.tensors import Weight, linear


def _convs(spec: DeltaSpec | GatedDeltaSpec | KDASpec, keys: int, values: int) -> Iterator[Weight]:
    for name, width in (("q_conv", keys), ("k_conv", keys), ("v_conv", values)):
        if spec.conv is not None:
            yield Weight(f"{name}.weight", (width, spec.conv))
        if spec.conv_bias:
            yield Weight(f"{name}.bias", (width,))


@singledispatch
def mixer(spec: MixerSpec, D: int) -> Iterator[Weight]:
    """The tensors of the mixer `spec`, over a stream of D channels."""
    raise ConfigError(f"no weights are known for a {type(spec).__name__}; register it in plan/mixer_weights.py.")


@mixer.register
def _(spec: AttentionSpec, D: int) -> Iterator[Weight]:
    inner = spec.heads * spec.head_dim
    yield from linear("qkv_proj", 3 * inner, D, spec.bias)
    yield from linear("o_proj", D, inner, spec.bias)


@mixer.register
def _(spec: RotaryAttentionSpec, D: int) -> Iterator[Weight]:
    inner, kept = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    yield from linear("q_proj", inner, D, spec.bias)
    yield from linear("k_proj", kept, D, spec.bias)
    yield from linear("v_proj", kept, D, spec.bias)
    if spec.qk_norm is not None:
        yield Weight("q_norm.weight", (spec.head_dim,))
        yield Weight("k_norm.weight", (spec.head_dim,))
    if spec.gate:
        yield from linear("g_proj", inner, D, spec.bias)
    yield from linear("o_proj", D, inner, spec.output_bias)


# layers of one feature map, with a bias or without
_MAP_LAYERS = {"elementwise_product": (("layer1", "layer2"), True), "hedgehog": (("layer",), True)}
_MAP_LAYERS["t2r"] = (("layer",), False)


def _feature_map(path: str, spec: LinearSpec) -> Iterator[Weight]:
    layers, bias = _MAP_LAYERS.get(spec.feature_map, ((), False))
    for layer in layers:
        yield from linear(f"{path}.{layer}", spec.key_dim, spec.key_dim, bias)


@mixer.register
def _(spec: LinearSpec, D: int) -> Iterator[Weight]:
    kept = spec.kv_heads or spec.heads
    yield from linear("q_proj", spec.heads * spec.key_dim, D)
    yield from linear("k_proj", kept * spec.key_dim, D)
    yield from linear("v_proj", kept * spec.value_dim, D)
    yield from _feature_map("q_map", spec)
    if not spec.tied_maps:
        yield from _feature_map("k_map", spec)
    if spec.norm_weight:
        yield Weight("o_norm.weight", (spec.value_dim,))
    yield from linear("o_proj", D, spec.heads * spec.value_dim)


@mixer.register
def _(spec: DeltaSpec, D: int) -> Iterator[Weight]:
    keys, values = spec.heads * spec.key_dim, spec.heads * spec.value_dim
    yield from linear("q_proj", keys, D)
    yield from linear("k_proj", keys, D)
    yield from linear("v_proj", values, D)
    yield from _convs(spec, keys, values)
    if spec.beta:
        yield from linear("b_proj", spec.heads, D)
    if spec.gate:
        yield from linear("g_proj", values, D)
    yield Weight("o_norm.weight", (spec.value_dim,))
    yield from linear("o_proj", D, values)


@mixer.register
def _(spec: GatedDeltaSpec, D: int) -> Iterator[Weight]:
    keys, values = spec.heads * spec.key_dim, spec.value_heads * spec.value_dim
    yield from linear("q_proj", keys, D)
    yield from linear("k_proj", keys, D)
    yield from linear("v_proj", values, D)
    yield from _convs(spec, keys, values)
    yield from linear("a_proj", spec.value_heads, D)
    yield from linear("b_proj", spec.value_heads, D)
    yield Weight("A_log", (spec.value_heads,))
    yield Weight("dt_bias", (spec.value_heads,))
    if spec.gate:
        yield from linear("g_proj", values, D)
    yield Weight("o_norm.weight", (spec.value_dim,))
    yield from linear("o_proj", D, values)


@mixer.register
def _(spec: KDASpec, D: int) -> Iterator[Weight]:
    keys, values, rank = spec.heads * spec.key_dim, spec.states * spec.value_dim, spec.value_dim
    decays = spec.states * spec.key_dim
    yield from linear("q_proj", keys, D)
    yield from linear("k_proj", keys, D)
    yield from linear("v_proj", values, D)
    yield from _convs(spec, keys, values)
    yield from linear("f_a_proj", rank, D)
    yield from linear("f_b_proj", decays, rank)
    yield from linear("b_proj", spec.states, D)
    yield Weight("A_log", (spec.states,))
    yield Weight("dt_bias", (decays,))
    if spec.output_gate == "full":
        yield from linear("g_proj", values, D)
    else:
        yield from linear("g_a_proj", rank, D)
        yield from linear("g_b_proj", values, rank, spec.gate_bias)
    yield Weight("o_norm.weight", (spec.value_dim,))
    yield from linear("o_proj", D, values)


@mixer.register
def _(spec: MLASpec, D: int) -> Iterator[Weight]:
    queries = spec.heads * (spec.nope_dim + spec.rope_dim)
    if spec.q_rank is None:
        yield from linear("q_proj", queries, D)
    else:
        yield from linear("q_a_proj", spec.q_rank, D)
        yield Weight("q_a_norm.weight", (spec.q_rank,))
        yield from linear("q_b_proj", queries, spec.q_rank)
    yield from linear("kv_a_proj", spec.kv_rank + spec.rope_dim, D)
    yield Weight("kv_a_norm.weight", (spec.kv_rank,))
    yield from linear("kv_b_proj", spec.heads * (spec.nope_dim + spec.value_dim), spec.kv_rank)
    if spec.gate:
        yield from linear("g_proj", spec.heads * spec.value_dim, D)
    yield from linear("o_proj", D, spec.heads * spec.value_dim)
