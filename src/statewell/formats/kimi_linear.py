"""Kimi Linear's config.json. Source: `moonshotai/Kimi-Linear-48B-A3B-Instruct`."""

from __future__ import annotations

from collections.abc import Mapping

from statewell.config.layers import ModelConfig, PlainStreamSpec, RMSNormSpec
from statewell.config.load import Json
from statewell.errors import RequestError
from statewell.formats.family import Family
from statewell.formats.fields import Fields
from statewell.formats.kimi import read_layers
from statewell.formats.kimi_write import write_layers
from statewell.formats.storage import storage


def _recognises(document: Mapping[str, Json]) -> bool:
    # K3's inner config calls itself kimi_linear too; its attention residuals tell it apart
    return document.get("model_type") == "kimi_linear" and document.get("attn_res_block_size") is None


def _model_config(fields: Fields) -> ModelConfig:
    fields.harmless("attn_res_block_size")
    return ModelConfig(
        name="kimi_linear",
        architecture="kimi_linear",
        vocab=fields.whole("vocab_size"),
        width=fields.whole("hidden_size"),
        layers=read_layers(fields),
        stream=PlainStreamSpec(),
        norm=RMSNormSpec(eps=fields.number("rms_norm_eps", default=1e-5)),
        context=fields.optional_whole("model_max_length", "max_position_embeddings"),
        tied=fields.flag("tie_word_embeddings", default=False),
        init_std=fields.number("initializer_range", default=0.02),
        storage=storage(fields, fp32=("A_log", "dt_bias")),
    )


def _config_json(config: ModelConfig) -> dict[str, Json]:
    if not isinstance(config.stream, PlainStreamSpec):
        raise RequestError("Kimi Linear has a plain residual stream")
    fields: dict[str, Json] = {"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear"}
    fields |= write_layers(config)
    return fields if config.context is None else {**fields, "model_max_length": config.context}


FAMILY = Family(
    name="kimi_linear",
    architectures=("kimi_linear",),
    recognises=_recognises,
    model_config=_model_config,
    config_json=_config_json,
)
