"""Qwen3-Next's config.json. Source: `Qwen/Qwen3-Next-80B-A3B-Instruct`; transformers' Qwen3NextConfig for defaults and
for its other way to write the rotation (`rope_parameters`).
"""

from __future__ import annotations

from collections.abc import Mapping

from statewell.config.layers import (
    FFNSpec,
    LayerSpec,
    MLPSpec,
    ModelConfig,
    MoESpec,
    OffsetRMSNormSpec,
    PlainStreamSpec,
    SwiGLU,
)
from statewell.config.load import Json
from statewell.config.mixers import GatedDeltaSpec, RotaryAttentionSpec
from statewell.errors import RequestError
from statewell.formats.family import Family
from statewell.formats.fields import MOST_LAYERS, Fields
from statewell.formats.storage import storage

FULL, LINEAR = "full_attention", "linear_attention"

_HARMLESS = ("attention_dropout", "output_router_logits", "router_aux_loss_coef")


def _recognises(document: Mapping[str, Json]) -> bool:
    return document.get("model_type") == "qwen3_next"


def _model_config(fields: Fields) -> ModelConfig:
    fields.harmless(*_HARMLESS)
    fields.only("hidden_act", "silu", why="statewell's Qwen3-Next networks have 'silu'")
    fields.only("rope_scaling", why="statewell's rotation is not scaled")
    eps = fields.number("rms_norm_eps", default=1e-6)
    depth = fields.whole("num_hidden_layers", default=48, highest=MOST_LAYERS)
    mixers = {FULL: _attention(fields, eps), LINEAR: _delta(fields)}
    layers = zip(_layer_types(fields, depth), _networks(fields, depth), strict=True)
    return ModelConfig(
        name="qwen3_next",
        architecture="qwen3_next",
        vocab=fields.whole("vocab_size", default=151936),
        width=fields.whole("hidden_size", default=2048),
        layers=tuple(LayerSpec(mixer=mixers[kind], ffn=ffn) for kind, ffn in layers),
        stream=PlainStreamSpec(),
        norm=OffsetRMSNormSpec(eps=eps),
        context=fields.whole("max_position_embeddings", default=32768),
        tied=fields.flag("tie_word_embeddings", default=False),
        init_std=fields.number("initializer_range", default=0.02),
        storage=storage(fields, fp32=("A_log", "dt_bias")),
    )


def _layer_types(fields: Fields, depth: int) -> list[str]:
    every = fields.whole("full_attention_interval", default=4)
    kinds = fields.optional_list(str, "layer_types")
    if kinds is None:
        return [FULL if (index + 1) % every == 0 else LINEAR for index in range(depth)]
    if len(kinds) != depth or not set(kinds) <= {FULL, LINEAR}:
        fields.refuse("layer_types", f"must name {FULL} or {LINEAR} for each of {depth} layers")
    return kinds


def _rotation(fields: Fields) -> tuple[float, float]:
    """The base of the wavelengths and the share of a head that is rotated, from either place a config has them."""
    if not fields.holds("rope_parameters"):
        fields.harmless("rope_parameters")
        return fields.number("rope_theta", default=1e4), fields.number("partial_rotary_factor", default=0.25)
    fields.harmless("rope_theta", "partial_rotary_factor")
    rope = fields.section("rope_parameters")
    rope.only("rope_type", "default", why="statewell's rotation is not scaled")
    return rope.number("rope_theta", default=1e4), rope.number("partial_rotary_factor", default=0.25)


def _attention(fields: Fields, eps: float) -> RotaryAttentionSpec:
    head_dim, bias = fields.whole("head_dim", default=256), fields.flag("attention_bias", default=False)
    theta, share = _rotation(fields)
    return RotaryAttentionSpec(
        heads=fields.whole("num_attention_heads", default=16),
        kv_heads=fields.whole("num_key_value_heads", default=2),
        head_dim=head_dim,
        rotary_dim=int(head_dim * share),
        theta=theta,
        bias=bias,
        output_bias=bias,
        qk_norm=OffsetRMSNormSpec(eps=eps),
        gate=True,
    )


def _delta(fields: Fields) -> GatedDeltaSpec:
    return GatedDeltaSpec(
        heads=fields.whole("linear_num_key_heads", default=16),
        value_heads=fields.whole("linear_num_value_heads", default=32),
        key_dim=fields.whole("linear_key_head_dim", default=128),
        value_dim=fields.whole("linear_value_head_dim", default=128),
        conv=fields.whole("linear_conv_kernel_dim", default=4),
    )


def _networks(fields: Fields, depth: int) -> list[FFNSpec]:
    dense = MLPSpec(width=fields.whole("intermediate_size", default=5632), activation=SwiGLU())
    only_dense = fields.optional_list(int, "mlp_only_layers") or []
    every = fields.whole("decoder_sparse_step", default=1)
    experts = fields.whole("num_experts", default=512, lowest=0)
    moe = _experts(fields, experts) if experts else dense
    return [moe if index not in only_dense and (index + 1) % every == 0 else dense for index in range(depth)]


def _experts(fields: Fields, experts: int) -> MoESpec:
    return MoESpec(
        experts=experts,
        top_k=fields.whole("num_experts_per_tok", default=10),
        width=fields.whole("moe_intermediate_size", default=512),
        shared_width=fields.whole("shared_expert_intermediate_size", default=512),
        activation=SwiGLU(),
        renormalize=fields.flag("norm_topk_prob", default=True),
        scores="softmax",
        shared_gate=True,
    )


def _config_json(config: ModelConfig) -> dict[str, Json]:
    mixers, networks = dict.fromkeys(x.mixer for x in config.layers), dict.fromkeys(x.ffn for x in config.layers)
    attention = [spec for spec in mixers if isinstance(spec, RotaryAttentionSpec)]
    delta = [spec for spec in mixers if isinstance(spec, GatedDeltaSpec)]
    moe = [spec for spec in networks if isinstance(spec, MoESpec)]
    dense = [spec for spec in networks if isinstance(spec, MLPSpec)]
    if (len(attention), len(delta), len(mixers)) != (1, 1, 2) or len(moe) > 1 or len(dense) > 1:
        raise RequestError("the layout has one kind each of attention, gated delta rule, experts and dense network")
    fields: dict[str, Json] = {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "num_hidden_layers": len(config.layers),
        "layer_types": [FULL if layer.mixer == attention[0] else LINEAR for layer in config.layers],
        "rms_norm_eps": config.norm.eps,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tied,
        "hidden_act": "silu",
        "use_cache": True,
        **_write_attention(attention[0]),
        **_write_delta(delta[0]),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [index for index, layer in enumerate(config.layers) if layer.ffn in dense],
        "num_experts": 0,
    }
    for spec in dense:
        fields["intermediate_size"] = spec.width
    for spec in moe:
        fields |= _write_experts(spec)
    return fields if config.context is None else {**fields, "max_position_embeddings": config.context}


def _write_attention(spec: RotaryAttentionSpec) -> dict[str, Json]:
    return {
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "attention_bias": spec.bias,
        "rope_theta": spec.theta,
        "rope_scaling": None,
        "partial_rotary_factor": spec.rotary_dim / spec.head_dim,
    }


def _write_delta(spec: GatedDeltaSpec) -> dict[str, Json]:
    return {
        "linear_num_key_heads": spec.heads,
        "linear_num_value_heads": spec.value_heads,
        "linear_key_head_dim": spec.key_dim,
        "linear_value_head_dim": spec.value_dim,
        "linear_conv_kernel_dim": spec.conv,
    }


def _write_experts(spec: MoESpec) -> dict[str, Json]:
    return {
        "num_experts": spec.experts,
        "num_experts_per_tok": spec.top_k,
        "moe_intermediate_size": spec.width,
        "shared_expert_intermediate_size": spec.shared_width,
        "norm_topk_prob": spec.renormalize,
    }


FAMILY = Family(
    name="qwen3_next",
    architectures=("qwen3_next",),
    recognises=_recognises,
    model_config=_model_config,
    config_json=_config_json,
)
