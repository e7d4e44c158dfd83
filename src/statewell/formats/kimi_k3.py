"""Kimi K3's config.json: a multimodal model whose text side lies in `text_config`, which calls itself kimi_linear.

A `text_config` on its own is recognised by its attention residuals. Source: `moonshotai/Kimi-K3`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from statewell.config.layers import AttnResSpec, LayerSpec, ModelConfig, RMSNormSpec
from statewell.config.load import Json
from statewell.config.mixers import KDASpec
from statewell.errors import RequestError
from statewell.formats.family import Family, TokenIds, token_ids
from statewell.formats.fields import Fields
from statewell.formats.kimi import read_layers
from statewell.formats.kimi_write import write_layers
from statewell.formats.storage import storage

FP32 = ("A_log", "dt_bias", "q_conv", "k_conv", "v_conv", "o_norm", "correction_bias")
_MXFP4 = "mxfp4-pack-quantized"


def _recognises(document: Mapping[str, Json]) -> bool:
    kind = document.get("model_type")
    return kind == "kimi_k3" or (kind == "kimi_linear" and document.get("attn_res_block_size") is not None)


def _model_config(fields: Fields) -> ModelConfig:
    if not fields.holds("text_config"):
        return _text_config(fields)
    # of the vision side only ids and sizes that text never meets
    fields.harmless("vision_config", "media_placeholder_token_id", "ignore_index", "use_unified_vision_chunk")
    text = fields.section("text_config")
    config = _text_config(text)
    if fields.flag("tie_word_embeddings", default=config.tied) != config.tied:
        fields.refuse("tie_word_embeddings", "differs from text_config's")
    return config


def _text_config(fields: Fields) -> ModelConfig:
    layers = read_layers(fields)
    stored, experts = storage(fields, fp32=FP32), _experts_storage(fields)
    return ModelConfig(
        name="kimi_k3",
        architecture="kimi_k3",
        vocab=fields.whole("vocab_size"),
        width=fields.whole("hidden_size"),
        layers=layers,
        stream=AttnResSpec(group=fields.whole("attn_res_block_size")),
        norm=RMSNormSpec(eps=fields.number("rms_norm_eps", default=1e-5)),
        context=fields.optional_whole("max_position_embeddings", "model_max_length"),
        tied=fields.flag("tie_word_embeddings", default=False),
        init_std=fields.number("initializer_range", default=0.02),
        storage=replace(stored, experts=experts, a_log_entries=_a_log_entries(layers)),
    )


def _token_ids(fields: Fields, vocab: int) -> TokenIds:
    """The outer ids where there are any, else those of the text side."""
    inner = token_ids(fields.section("text_config"), vocab) if fields.holds("text_config") else TokenIds()
    outer = token_ids(fields, vocab)
    return inner if outer == TokenIds() else outer


def _experts_storage(fields: Fields) -> str | None:
    """ "mxfp4" where the config says that experts are packed; the file's tensors decide, this only names them."""
    if not fields.holds("quantization_config"):
        fields.harmless("quantization_config")
        return None
    packed = fields.section("quantization_config")
    packed.only("quant_method", "compressed-tensors", why="statewell reads compressed-tensors")
    packed.only("format", _MXFP4, why=f"statewell reads {_MXFP4}")
    packed.harmless("config_groups", "ignore", "kv_cache_scheme", "quantization_status", "global_compression_ratio")
    packed.harmless("version", "sparsity_config", "transform_config")
    return "mxfp4"


def _a_log_entries(layers: tuple[LayerSpec, ...]) -> int | None:
    """How many entries the release stores for A_log: a head's width, where that is more than the heads."""
    for layer in layers:
        if isinstance(layer.mixer, KDASpec):
            return layer.mixer.key_dim if layer.mixer.heads < layer.mixer.key_dim else None
    return None


def _config_json(config: ModelConfig) -> dict[str, Json]:
    if not isinstance(config.stream, AttnResSpec):
        raise RequestError("Kimi K3 has attention residuals")
    text = {"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", **write_layers(config)}
    text["attn_res_block_size"] = config.stream.group
    if config.context is not None:
        text["max_position_embeddings"] = config.context
    if config.storage.experts == "mxfp4":
        text["quantization_config"] = _QUANTIZATION
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "tie_word_embeddings": config.tied,
        "text_config": text,
    }


# As released; readers of compressed-tensors need each of these.
_QUANTIZATION: dict[str, Json] = {
    "quant_method": "compressed-tensors",
    "format": _MXFP4,
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "format": _MXFP4,
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "float",
                "strategy": "group",
                "group_size": 32,
                "symmetric": True,
                "dynamic": False,
                "scale_dtype": "torch.uint8",
                "observer": "minmax",
            },
        }
    },
    "ignore": [
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        "re:.*lm_head.*",
        "re:.*vision_tower.*",
        "re:.*mm_projector.*",
    ],
}

FAMILY = Family(
    name="kimi_k3",
    architectures=("kimi_k3",),
    recognises=_recognises,
    model_config=_model_config,
    config_json=_config_json,
    token_ids=_token_ids,
)
