"""Model configs as JSON and back. A dataclass becomes an object whose `kind` is its class; errors name the path."""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
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
    hints = _hints(KINDS[kind])
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise ConfigError(f"{path}.{name} is {_short(value)}, which a {kind} cannot have there.")
    return KINDS[kind](**values)


@cache
def _hints(kind: type) -> dict[str, object]:
    return typing.get_type_hints(kind)


def _fits(value: object, hint: object) -> bool:
    """Whether `value` is what a field of that annotation holds; true is no number."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is typing.Literal:
        return value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in cast(tuple[object, ...], value))
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    return isinstance(value, (int, float) if hint is float else cast(type, hint))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
