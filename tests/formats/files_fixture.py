"""Safetensors files written by hand, so that they can be wrong in every way a writer would refuse."""

from __future__ import annotations

import json
from pathlib import Path

Described = dict[str, object]


def described(dtype: str, shape: list[int], begin: int, end: int) -> Described:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_file(path: Path, header: object, tensor_bytes: int, length: int | None = None) -> Path:
    """A file with `header` (JSON, or bytes as they are) and zeros after it. length: what it says the header has."""
    raw = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + bytes(tensor_bytes))
    return path


def write_index(folder: Path, weight_map: object, **metadata: object) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return path


def write_shards(folder: Path) -> dict[str, str]:
    """Two whole shards of three tensors with 24 bytes, without an index; returns the weight_map they need."""
    a, b = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    write_file(folder / a, {"x": described("F32", [2], 0, 8), "y": described("U8", [8], 8, 16)}, 16)
    write_file(folder / b, {"z": described("BF16", [2, 2], 0, 8)}, 8)
    return {"x": a, "y": a, "z": b}
