"""Every family, and the two questions asked of all of them: whose config.json is this, and who can hold this model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from statewell import architectures
from statewell.config.layers import ModelConfig, Storage
from statewell.config.load import Json, model_to_json
from statewell.errors import CheckpointError, ConfigError, RequestError
from statewell.formats import fla, gpt2, kimi_k3, kimi_linear, qwen3_next
from statewell.formats.family import Family, TokenIds
from statewell.formats.fields import Fields, short
from statewell.formats.strict_json import read_json

FAMILIES: tuple[Family, ...] = (
    gpt2.FAMILY,
    fla.FAMILY,
    qwen3_next.FAMILY,
    kimi_k3.FAMILY,
    kimi_linear.FAMILY,
)
CONFIG = "config.json"
MOST_CONFIG_BYTES = 16 * 2**20


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a config.json says. config: named after its preset, or its family. preset: the released preset it equals, or
    None. unread: its fields that change nothing here."""

    family: Family
    config: ModelConfig
    preset: str | None
    token_ids: TokenIds
    unread: tuple[str, ...]


def read_object(path: Path) -> dict[str, Json]:
    """A config's JSON object. Raises CheckpointError where the file is absent, no JSON, no object, or past 16 MiB."""
    document = read_json(path, MOST_CONFIG_BYTES)
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} holds no JSON object; use another copy of this model.")
    return cast("dict[str, Json]", document)


def describe(document: Mapping[str, Json], path: str = CONFIG) -> Description:
    """What the config.json `document` describes, each of its fields accounted for; `path` names it in errors.

    Raises CheckpointError for a family
    nobody here knows, and for a field that is missing, wrong or would change the model in a way not offered.
    """
    family = _recognised(document, path)
    fields = Fields(document, path)
    fields.harmless("model_type")
    try:
        config = family.model_config(fields)
    except ConfigError as error:
        raise CheckpointError(f"{path} describes no model statewell can build: {error}") from error
    ids = family.token_ids(fields, config.vocab)
    preset = _preset(config)
    named = replace(config, name=preset or family.name)
    return Description(family=family, config=named, preset=preset, token_ids=ids, unread=fields.unread())


def released_layout(config: ModelConfig) -> tuple[Family, dict[str, Json]]:
    """The family whose layout holds `config`, and the config.json that says so.

    A family holds a config when reading what it writes gives the same model back. Raises RequestError with each
    family's reason where none does.
    """
    reasons: list[str] = []
    for family in FAMILIES:
        if config.architecture not in family.architectures:
            continue
        try:
            document = family.config_json(config)
            difference = _difference(describe(document).config, config)
        except (RequestError, CheckpointError) as error:
            reasons.append(f"{family.name}: {error}")
            continue
        if difference is None:
            return family, document
        reasons.append(f"{family.name} has no words for its {difference}")
    raise RequestError(
        f"{config.name} fits no released layout ({'; '.join(reasons) or f'none is for {config.architecture}'})."
    )


def _recognised(document: Mapping[str, Json], path: str) -> Family:
    kind = document.get("model_type")
    if isinstance(kind, str):
        for family in FAMILIES:
            if family.recognises(document):
                return family
    known = ", ".join(family.name for family in FAMILIES)
    raise CheckpointError(f"{path}: model_type is {short(kind)}, which statewell does not load; it loads {known}.")


def _preset(config: ModelConfig) -> str | None:
    for name, released in architectures.RELEASED.items():
        if replace(config, name=name, storage=released.storage) == released:
            return name
    return None


def _difference(read: ModelConfig, config: ModelConfig) -> str | None:
    """The first field in which two models differ, apart from what a layout need not say: name and stored dtypes."""
    same = {"name": config.name, "storage": Storage(), "architecture": config.architecture}
    ours, theirs = (replace(one, **same) for one in (config, read))
    if ours == theirs:
        return None
    return _first_difference(model_to_json(ours), model_to_json(theirs), "")


def _first_difference(ours: Json, theirs: Json, path: str) -> str:
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for name in ours:
            if ours[name] != theirs[name]:
                return _first_difference(ours[name], theirs[name], f"{path}.{name}" if path else name)
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if one != other:
                return _first_difference(one, other, f"{path}[{index}]")
    return f"{path} = {ours if not isinstance(ours, dict) else ours.get('kind')}"
