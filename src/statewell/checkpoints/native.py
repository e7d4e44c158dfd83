"""Our own format: a folder with `config.json` (what the model is, its tokenizer), `model.safetensors` (its weights) and
the tokenizer's own files where it has any."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from statewell.checkpoints.assemble import Source, fill, require_plausible
from statewell.checkpoints.files import save_tensors
from statewell.checkpoints.rules import Rename
from statewell.config.layers import ModelConfig
from statewell.config.load import Json, model_from_json, model_to_json
from statewell.errors import CheckpointError
from statewell.formats.families import read_object
from statewell.formats.files import write_atomically
from statewell.formats.listing import open_listing
from statewell.models.backbone import LanguageModel
from statewell.plan.weights import weights
from statewell.text import Tokenizer, tokenizer_from_json

FORMAT, VERSION = "statewell", 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save_model(folder: Path, model: LanguageModel) -> None:
    """Save config, tokenizer and weights into `folder`, made if absent; each file is whole or absent."""
    folder.mkdir(parents=True, exist_ok=True)
    if model.tokenizer is not None:
        save_tokenizer_files(folder, model.tokenizer)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "model": model_to_json(model.config),
        "tokenizer": None if model.tokenizer is None else model.tokenizer.to_json(),
    }
    write_atomically(folder / CONFIG, json.dumps(document, indent=1).encode())
    save_tensors(folder / WEIGHTS, dict(model.state_dict()))


def save_tokenizer_files(folder: Path, tokenizer: Tokenizer) -> None:
    """Put the tokenizer's files into `folder`; those that already lie there with the same content are left alone."""
    for name, content in tokenizer.files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            write_atomically(path, content)


def is_ours(document: Mapping[str, object]) -> bool:
    """Whether a config.json was written by `save_model`, of whatever version."""
    return document.get("format") == FORMAT


def read_config(folder: Path) -> dict[str, Json]:
    """The document of `config.json`. Raises CheckpointError when it is not ours, or of a later version."""
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no {CONFIG}; give the folder of a saved model or run.")
    document = read_object(path)
    if not is_ours(document):
        raise CheckpointError(f"{path} was not written by statewell; open it with statewell.load.")
    if document.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {document.get('version')}, this statewell reads {VERSION}; upgrade statewell."
        )
    return document


def saved_config(folder: Path) -> ModelConfig:
    """What the model saved in `folder` is, without reading a weight."""
    return model_from_json(read_config(folder).get("model"))


def open_source(folder: Path) -> Source:
    """The model saved in `folder`, its weights unread. Raises CheckpointError for a foreign or damaged folder."""
    config = saved_config(folder)
    listing = open_listing(folder / WEIGHTS)
    listing.require_whole()
    return Source(
        config=config,
        tokenizer=_tokenizer(read_config(folder), folder, config),
        listing=listing,
        names={name: name for name in listing.tensors},
        entries=tuple(Rename(weight.name, weight.name) for weight in weights(config)),
    )


def load_model(folder: Path, recompute: bool = False) -> LanguageModel:
    """The model saved in `folder`, its weights in their stored dtypes, mapped.

    Raises CheckpointError for a foreign, truncated or ill-fitting file, naming the first tensor that is missing or
    unused.
    """
    source = open_source(folder)
    require_plausible(source.config, source.listing)
    with torch.device("meta"):
        model = LanguageModel(source.config, recompute)
    fill(model, source, None)
    model.tokenizer = source.tokenizer
    return model


def saved_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of the model saved in `folder`, without reading a weight."""
    return _tokenizer(read_config(folder), folder, saved_config(folder))


def _tokenizer(document: Mapping[str, object], folder: Path, config: ModelConfig) -> Tokenizer | None:
    kept = document.get("tokenizer")
    if not isinstance(kept, dict):
        return None
    tokenizer = tokenizer_from_json(kept, folder)
    if tokenizer.vocab > config.vocab:
        raise CheckpointError(
            f"{folder / CONFIG}: its tokenizer has {tokenizer.vocab:,} ids and the model {config.vocab:,}; "
            "the two are not of one model."
        )
    return tokenizer
