"""Writing the config.json that `fla.py` reads. What the layout has no words for shows when the result is read back."""

from __future__ import annotations

import math
from functools import singledispatch

from statewell.config.layers import AttnResSpec, MLPSpec, ModelConfig, RMSNormSpec
from statewell.config.load import Json
from statewell.config.mixers import DeltaSpec, GatedDeltaSpec, KDASpec, LinearSpec, MixerSpec, RotaryAttentionSpec
from statewell.errors import RequestError


def config_json(config: ModelConfig) -> dict[str, Json]:
    """The document. Raises RequestError where the layers are not of one kind besides attention."""
    if not isinstance(config.norm, RMSNormSpec):
        raise RequestError("the layout has RMSNorm")
    mixers = [layer.mixer for layer in config.layers]
    recurrent = list(dict.fromkeys(mixer for mixer in mixers if not isinstance(mixer, RotaryAttentionSpec)))
    networks = list(dict.fromkeys(layer.ffn for layer in config.layers))
    if len(recurrent) != 1 or len(networks) != 1 or not isinstance(networks[0], MLPSpec):
        raise RequestError("the layout has one kind of recurrent mixer, beside attention, and one dense network")
    return {
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "num_hidden_layers": len(mixers),
        "intermediate_size": networks[0].width,
        "hidden_act": "swish",
        "norm_eps": config.norm.eps,
        "attnres_block_size": config.stream.sublayers if isinstance(config.stream, AttnResSpec) else None,
        "attn": _attention(mixers),
        "tie_word_embeddings": config.tied,
        "initializer_range": config.init_std,
        "fuse_cross_entropy": False,
        **_mixer(recurrent[0], config.width),
    }


def _attention(mixers: list[MixerSpec]) -> Json:
    found = list(dict.fromkeys(mixer for mixer in mixers if isinstance(mixer, RotaryAttentionSpec)))
    if not found:
        return None
    if len(found) > 1:
        raise RequestError("the layout has one kind of attention")
    layers: list[Json] = [index for index, mixer in enumerate(mixers) if mixer == found[0]]
    return {
        "layers": layers,
        "num_heads": found[0].heads,
        "num_kv_heads": found[0].kv_heads,
        "qkv_bias": found[0].bias,
        "rope_theta": found[0].theta,
        "window_size": None,
    }


def _ratio(whole: int, unit: int) -> float:
    """whole/unit, such that cutting unit times it gives `whole` again."""
    ratio = whole / unit
    return ratio if int(unit * ratio) == whole else math.nextafter(ratio, math.inf)


def _conv(spec: DeltaSpec | GatedDeltaSpec | KDASpec) -> dict[str, Json]:
    taken: dict[str, Json] = {"use_short_conv": spec.conv is not None, "allow_neg_eigval": spec.neg_eigval}
    if spec.conv is not None:
        taken["conv_size"] = spec.conv
    return taken | ({"conv_bias": True} if spec.conv_bias else {})


@singledispatch
def _mixer(spec: MixerSpec, width: int) -> dict[str, Json]:
    raise RequestError(f"the layout has no {spec.label}")


@_mixer.register
def _(spec: LinearSpec, width: int) -> dict[str, Json]:
    return {
        "architectures": ["LinearAttentionForCausalLM"],
        "model_type": "linear_attn",
        "attn_mode": "fused_chunk",
        "num_heads": spec.heads,
        "num_kv_heads": spec.kv_heads,
        "expand_k": _ratio(spec.heads * spec.key_dim, width),
        "expand_v": _ratio(spec.heads * spec.value_dim, width),
        "feature_map": spec.feature_map,
        "tie_feature_map_qk": spec.tied_maps,
        "norm_q": spec.norm_q,
        "norm_k": spec.norm_k,
        "norm_feature_map": spec.normalize,
        "elementwise_affine": spec.norm_weight,
    }


@_mixer.register
def _(spec: DeltaSpec, width: int) -> dict[str, Json]:
    return {
        "architectures": ["DeltaNetForCausalLM"],
        "model_type": "delta_net",
        "attn_mode": "chunk",
        "num_heads": spec.heads,
        "expand_k": _ratio(spec.heads * spec.key_dim, width),
        "expand_v": _ratio(spec.heads * spec.value_dim, width),
        "use_beta": spec.beta,
        "use_gate": spec.gate,
        "qk_activation": spec.qk_activation,
        "qk_norm": spec.qk_norm,
        **_conv(spec),
    }


@_mixer.register
def _(spec: GatedDeltaSpec, width: int) -> dict[str, Json]:
    return {
        "architectures": ["GatedDeltaNetForCausalLM"],
        "model_type": "gated_deltanet",
        "attn_mode": "chunk",
        "num_heads": spec.heads,
        "num_v_heads": spec.value_heads,
        "head_dim": spec.key_dim,
        "expand_v": _ratio(spec.value_dim, spec.key_dim),
        "use_gate": spec.gate,
        **_conv(spec),
    }


@_mixer.register
def _(spec: KDASpec, width: int) -> dict[str, Json]:
    return {
        "architectures": ["KDAForCausalLM"],
        "model_type": "kda",
        "attn_mode": "chunk",
        "num_heads": spec.heads,
        "num_v_heads": spec.value_heads,
        "head_dim": spec.key_dim,
        "expand_v": _ratio(spec.value_dim, spec.key_dim),
        "safe_gate": spec.lower_bound is not None,
        "lower_bound": spec.lower_bound,
        **_conv(spec),
    }
