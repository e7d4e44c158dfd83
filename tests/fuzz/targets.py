"""What is fuzzed: each target takes bytes as a file would have them, and may raise our own errors only.

Two things are checked at every input besides: memory stays within a multiple of the input, and what is accepted holds
together (every tensor's bytes lie in the file).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

from statewell.config.load import Json, model_from_json
from statewell.errors import StatewellError
from statewell.formats.families import describe
from statewell.formats.inspection import inspect
from statewell.formats.listing import open_listing
from statewell.formats.safetensors import examine_header, read_header, read_tensor
from statewell.formats.strict_json import parse_json
from statewell.memory.snapshot import load_snapshot
from statewell.text import load_tokenizer
from tests.formats.files_fixture import write_shards
from tests.text.vocabularies import byte_level, kimi

# in memory where there is such a place: a disk would be what takes the time
_FOLDER = tempfile.TemporaryDirectory(prefix="statewell-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
FOLDER = Path(_FOLDER.name)
INDEXED = FOLDER / "indexed"


def header(raw: bytes) -> None:
    """A whole file: accepted only when every tensor's bytes are there."""
    path = FOLDER / "header.safetensors"
    path.write_bytes(raw)
    examined = examine_header(path)
    for entry in examined.entries.values():
        assert 0 <= entry.begin <= entry.end <= len(raw)
    if not examined.problems:
        for entry in read_header(path).entries.values():
            assert len(read_tensor(path, entry)) == entry.nbytes
    inspect(path)


def header_text(raw: bytes) -> None:
    """A header's JSON with its right length and 64 bytes after it, so that mutations reach past the length."""
    header(len(raw).to_bytes(8, "little") + raw + bytes(64))


def index(raw: bytes) -> None:
    """An index beside two whole shards: a path out of the folder is never opened."""
    if not INDEXED.exists():
        INDEXED.mkdir()
        write_shards(INDEXED)
    (INDEXED / "model.safetensors.index.json").write_bytes(raw)
    listing = open_listing(INDEXED)
    assert all(file.parent == INDEXED for file in listing.files)
    inspect(INDEXED)


def config(raw: bytes) -> None:
    """A config.json, as a released one and as one of ours."""
    document = parse_json(raw, "config.json")
    if isinstance(document, dict):
        fields = cast(dict[str, Json], document)
        described = describe(fields)
        assert described.config.vocab > 0


def own_config(raw: bytes) -> None:
    """The model in a config.json of ours."""
    model_from_json(cast(Json, parse_json(raw, "config.json")))


def snapshot(raw: bytes) -> None:
    """A snapshot's file."""
    path = FOLDER / "snapshot.safetensors"
    path.write_bytes(raw)
    load_snapshot(path, "f")


def _tokenizer(name: str, beside: Callable[[Path], Path], raw: bytes) -> None:
    """A tokenizer's folder of which one file has these bytes; what is read turns text into ids of its own."""
    folder = FOLDER / name
    if not folder.exists():
        beside(folder)
    (folder / name).write_bytes(raw)
    found = load_tokenizer(folder)
    if found is not None:
        assert all(0 <= number < found.vocab for number in found.encode("the message"))


def tokenizer_json(raw: bytes) -> None:
    """A tokenizer.json."""
    _tokenizer("tokenizer.json", byte_level, raw)


def tiktoken_model(raw: bytes) -> None:
    """Kimi's tiktoken file."""
    _tokenizer("tiktoken.model", kimi, raw)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "header": header,
    "header_text": header_text,
    "index": index,
    "config": config,
    "own_config": own_config,
    "snapshot": snapshot,
    "tokenizer_json": tokenizer_json,
    "tiktoken_model": tiktoken_model,
}


def only_our_errors(target: Callable[[bytes], None], raw: bytes) -> bool:
    """Run it; whether the input was accepted. Anything but our own errors goes through."""
    try:
        target(raw)
    except StatewellError:
        return False
    return True
