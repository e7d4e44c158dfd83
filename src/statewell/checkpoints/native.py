"""Our own format: a folder with `config.json` (what the model is, its tokenizer), `model.safetensors` (its weights) and
the tokenizer's own files where it has any."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from statewell.checkpoints.files import read_tensors, save_tensors, write_atomically
from statewell.config.layers import ModelConfig
from statewell.config.load import model_from_json, model_to_json
from statewell.errors import CheckpointError
from statewell.models.backbone import LanguageModel
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


def read_config(folder: Path) -> dict[str, object]:
    """The document of `config.json`. Raises CheckpointError when it is not ours, or of a later version."""
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no {CONFIG}; give the folder of a saved model or run.")
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error}); use another copy of this model.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by statewell; only its own folders load so far.")
    if document.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {document.get('version')}, this statewell reads {VERSION}; upgrade statewell."
        )
    return document


def saved_config(folder: Path) -> ModelConfig:
    """What the model saved in `folder` is, without reading a weight."""
    return model_from_json(read_config(folder)["model"])  # type: ignore[arg-type]


def load_model(folder: Path, recompute: bool = False) -> LanguageModel:
    """The model saved in `folder`, its weights in their stored dtypes.

    Raises CheckpointError for a foreign, truncated or ill-fitting file, naming the first tensor that is missing or
    unused.
    """
    document = read_config(folder)
    config = model_from_json(document["model"])  # type: ignore[arg-type]
    tensors, _ = read_tensors(folder / WEIGHTS)
    with torch.device("meta"):
        model = LanguageModel(config, recompute)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if expected != found:
        odd = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise CheckpointError(
            f"{len(odd)} tensors of {folder / WEIGHTS} do not fit {config.name}, first: {odd[0]} "
            f"(file {_shape(found.get(odd[0]))}, model {_shape(expected.get(odd[0]))}); the config is another's."
        )
    model.load_state_dict(tensors, assign=True)
    model.tokenizer = _tokenizer(document, folder, config)
    return model


def saved_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of the model saved in `folder`, without reading a weight."""
    return _tokenizer(read_config(folder), folder, saved_config(folder))


def _tokenizer(document: dict[str, object], folder: Path, config: ModelConfig) -> Tokenizer | None:
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


def _shape(shape: torch.Size | None) -> str:
    return "none" if shape is None else str(tuple(shape))
