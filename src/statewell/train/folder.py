"""A run folder and what it says it is.

train.json           the request: model, training, text, and a hash of all that decides the losses
config.json, model.safetensors   the newest weights, a saved model like any other
metrics.jsonl        one line per step and evaluation
state/               what `--resume` needs
lock                 held while a process trains here
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from statewell.config.layers import ModelConfig
from statewell.config.load import model_from_json, model_to_json
from statewell.config.load_run import train_config_from_json
from statewell.config.run import TrainConfig, changed_fields
from statewell.errors import CheckpointError, ConfigError, RequestError
from statewell.formats.files import write_atomically
from statewell.text import ByteTokenizer
from statewell.text.files import FILE_NAMES

_FORMAT = "statewell-run"
_FILE = "train.json"


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run was asked for. data: the paths given, absolute; empty means the standard library. data_key:
    Corpus.key.

    threads: torch's threads, which decide the last bits of the losses. tokenizer: its `to_json`. start:
    `fingerprint` of the model it began with, None for random weights.
    """

    model: ModelConfig
    train: TrainConfig
    data: tuple[Path, ...]
    data_key: str
    threads: int
    tokenizer: Mapping[str, object] = field(default_factory=lambda: ByteTokenizer().to_json())
    start: str | None = None

    @property
    def identity(self) -> str:
        """Hash of what decides the losses; where the text lies is not part of it."""
        parts: list[object] = [model_to_json(self.model), dataclasses.asdict(self.train), self.data_key]
        if self.start is not None:
            parts.append(self.start)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def is_run(folder: Path) -> bool:
    """Whether a run was started in `folder`."""
    return (folder / _FILE).is_file()


def read_request(folder: Path) -> RunRequest:
    """What the run in `folder` was asked for. Raises RequestError where there is none, CheckpointError where
    it is damaged.
    """
    if not is_run(folder):
        raise RequestError(f"There is no run to resume in {folder}; start it without --resume.")
    path = folder / _FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != _FORMAT:
            raise CheckpointError(f"{path} was not written by statewell train.")
        return RunRequest(
            model=model_from_json(document["model"]),
            train=train_config_from_json(document["train"], str(path)),
            data=tuple(Path(p) for p in document["data"]["paths"]),
            data_key=document["data"]["key"],
            threads=document["threads"],
            tokenizer=document.get("tokenizer", ByteTokenizer().to_json()),
            start=document.get("start"),
        )
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{path} is damaged or from another version: {error}") from error


def write_request(folder: Path, request: RunRequest) -> None:
    """Write train.json."""
    document = {
        "format": _FORMAT,
        "version": 1,
        "model": model_to_json(request.model),
        "train": dataclasses.asdict(request.train),
        "data": {"key": request.data_key, "paths": [str(path) for path in request.data]},
        "threads": request.threads,
        "tokenizer": request.tokenizer,
        "start": request.start,
    }
    write_atomically(folder / _FILE, (json.dumps(document, indent=1) + "\n").encode())


def require_free(folder: Path) -> None:
    """Raise RequestError unless a new run can start in `folder`: it is missing, empty, or was left before its
    run began.
    """
    if is_run(folder):
        raise RequestError(
            f"{folder} already holds a run; go on with it by --resume, or name another folder with --out."
        )
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is a file; name a folder with --out.")
    # what a process that was killed before its run began may have left
    left_over = ("lock", "state", "metrics.jsonl")
    names = [entry.name for entry in folder.iterdir()] if folder.exists() else []
    if "state" in names:
        left_over += FILE_NAMES
    if any(name not in left_over and not name.endswith(".tmp") for name in names):
        raise RequestError(f"{folder} holds files that are not a run; name another folder with --out.")


def remove_unfinished(folder: Path) -> None:
    """Drop what a killed process was writing when it ended; what it had finished has another name. Needs the lock."""
    for place in (folder, folder / "state"):
        for pattern in (".*.tmp", ".tmp*"):
            for path in place.glob(pattern):
                path.unlink()


def require_same(folder: Path, stored: RunRequest, asked: RunRequest) -> None:
    """Raise RequestError, naming the first difference, unless `asked` resumes `stored`."""
    way_out = "resume without that change, or start a new run with another --out."
    if stored.model != asked.model:
        what = f"model {stored.model.name}"
        other = asked.model.name if stored.model.name != asked.model.name else "another version of it"
        raise RequestError(f"{folder} is a run of {what} and this asks for {other}; {way_out}")
    for name in changed_fields(stored.train, asked.train):
        was, now = getattr(stored.train, name), getattr(asked.train, name)
        raise RequestError(f"{folder} was started with {name} = {was} and this asks for {name} = {now}; {way_out}")
    if stored.data_key != asked.data_key:
        raise RequestError(
            f"{folder} was started on other text: its files have changed or --data names others; {way_out}"
        )
