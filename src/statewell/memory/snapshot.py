"""A snapshot as one safetensors file, exact to the bit, bound to the model it was taken from.

The file's metadata says what it is: format, version, the model's fingerprint, each row's length, and the writer's own
notes. `statewell inspect` reads that much without torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from torch import Tensor

from statewell.errors import CheckpointError
from statewell.formats.files import write_atomically
from statewell.formats.safetensors import Header, TensorEntry, read_header, read_tensor
from statewell.formats.strict_json import parse_json, shown
from statewell.memory.base import Snapshot

FORMAT, VERSION = "statewell-snapshot", "1"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NOTE = "note."


@dataclass(frozen=True)
class SavedSnapshot:
    """A snapshot out of a file, and the notes it was saved with."""

    snapshot: Snapshot
    notes: dict[str, str]


def save_snapshot(path: Path, snapshot: Snapshot, fingerprint: str, notes: Mapping[str, str] | None = None) -> None:
    """Write `snapshot` to `path`, whole or not at all.

    fingerprint: of the model it was taken from (`models.fingerprint`). notes: whatever the caller wants back with it.
    """
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": fingerprint,
        "lengths": json.dumps(snapshot.lengths),
        **{_NOTE + name: text for name, text in (notes or {}).items()},
    }
    tensors = {name: tensor.detach().contiguous() for name, tensor in snapshot.tensors.items()}
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata))


def load_snapshot(path: Path, fingerprint: str) -> SavedSnapshot:
    """The snapshot in `path`, for the model of that fingerprint.

    Raises CheckpointError when the file is damaged, no snapshot, of another version, or was taken from another model;
    whether it fits the rows it is restored into, `restore` checks.
    """
    header = read_header(path)
    _require_ours(header, fingerprint)
    tensors = {name: _tensor(path, entry) for name, entry in header.entries.items()}
    notes = {name.removeprefix(_NOTE): text for name, text in header.metadata.items() if name.startswith(_NOTE)}
    return SavedSnapshot(Snapshot(tensors, _lengths(header)), notes)


def _require_ours(header: Header, fingerprint: str) -> None:
    found = header.metadata
    if found.get("format") != FORMAT:
        raise CheckpointError(f"{header.path} is no snapshot; give a file that /save or save_snapshot wrote.")
    if found.get("version") != VERSION:
        raise CheckpointError(
            f"{header.path} has version {shown(found.get('version', 'none'))}, this statewell reads {VERSION}; "
            "upgrade statewell."
        )
    if found.get("fingerprint") != fingerprint:
        raise CheckpointError(
            f"{header.path} was taken from another model: fingerprint {shown(found.get('fingerprint', 'none'))}, "
            f"this model's is {fingerprint}; load the model it came from."
        )


def _lengths(header: Header) -> tuple[int, ...]:
    lengths = parse_json(header.metadata.get("lengths", "").encode(), f"{header.path}: lengths")
    if not isinstance(lengths, list) or not all(type(length) is int and length >= 0 for length in lengths):
        raise CheckpointError(f"{header.path}: lengths should be whole numbers, one per row; the file is damaged.")
    return tuple(cast(list[int], lengths))


def _tensor(path: Path, entry: TensorEntry) -> Tensor:
    if re.fullmatch(r"[0-9]{1,6}\..+", entry.name) is None:
        raise CheckpointError(f"{path}: tensor {shown(entry.name)} should be named LAYER.NAME; the file is damaged.")
    dtype = DTYPES.get(entry.dtype)
    if dtype is None:
        raise CheckpointError(
            f"{path}: tensor {shown(entry.name)} is {entry.dtype}; a memory holds {', '.join(DTYPES)}."
        )
    if entry.nbytes == 0:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(read_tensor(path, entry), dtype=dtype).reshape(entry.shape)
