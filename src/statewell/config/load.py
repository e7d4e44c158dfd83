"""Model configs as JSON and back. A dataclass becomes an object whose `kind` is its class; errors name the path."""

from __future__ import annotations

import dataclasses
from typing import cast

from statewell.config import layers, mixers
from statewell.config.layers import ModelConfig
from statewell.errors import ConfigError, nearest

KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        mixers.AttentionSpec,
        mixers.RotaryAttentionSpec,
        mixers.LinearSpec,
        mixers.DeltaSpec,
        mixers.GatedDeltaSpec,
        mixers.KDASpec,
        mixers.MLASpec,
        layers.GELU,
        layers.SwiGLU,
        layers.SiTU,
        layers.MLPSpec,
        layers.MoESpec,
        layers.LatentMoESpec,
        layers.LayerSpec,
        layers.PlainStreamSpec,
        layers.AttnResSpec,
        layers.LayerNormSpec,
        layers.RMSNormSpec,
        layers.OffsetRMSNormSpec,
        layers.Storage,
        layers.ModelConfig,
    )
}

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def model_to_json(config: ModelConfig) -> dict[str, Json]:
    """The config as plain JSON values, `model_from_json`'s inverse."""
    return cast(dict[str, Json], _to_json(config))


def model_from_json(document: Json) -> ModelConfig:
    """Read a config back, with every check run again; raises ConfigError naming the path of what is wrong."""
    config = _from_json(document, "model")
    if not isinstance(config, ModelConfig):
        raise ConfigError("model is not a ModelConfig; the file does not describe a statewell model.")
    return config


def _to_json(value: object) -> Json:
    if dataclasses.is_dataclass(value):
        fields = {field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [_to_json(item) for item in cast(tuple[object, ...], value)]
    return cast(Json, value)


def _from_json(document: Json, path: str) -> object:
    if isinstance(document, list):
        return tuple(_from_json(item, f"{path}[{index}]") for index, item in enumerate(document))
    if not isinstance(document, dict):
        return document
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{path}.kind is {kind!r}; {nearest(str(kind), KINDS)}")
    fields = {field.name: field for field in dataclasses.fields(KINDS[kind])}
    for key in document:
        if key != "kind" and key not in fields:
            raise ConfigError(f"{path}.{key} is not a field of {kind}; {nearest(key, fields)}")
    for name, field in fields.items():
        if name not in document and field.default is dataclasses.MISSING:
            raise ConfigError(f"{path}.{name} is missing; a {kind} needs it.")
    values = {key: _from_json(item, f"{path}.{key}") for key, item in document.items() if key != "kind"}
    return KINDS[kind](**values)
