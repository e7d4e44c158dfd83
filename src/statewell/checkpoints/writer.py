"""Safetensors files of any size, written tensor by tensor: a header worked out beforehand, then the bytes in its order.

Past 5 GB the tensors go into shards beside an index, as released checkpoints do. Source: the format's README
(huggingface/safetensors, "Format").
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from statewell.checkpoints.reader import BYTES, TORCH_DTYPES
from statewell.formats.listing import INDEX, SINGLE

SHARD_BYTES = 5_000_000_000
_FILE_DTYPES = {dtype: name for name, dtype in (TORCH_DTYPES | BYTES).items()}
_ALIGNMENT = 8


@dataclass(frozen=True)
class Planned:
    """A tensor to be written: its name in the file, its shape and its dtype there."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(
    folder: Path, planned: list[Planned], tensors: Iterable[Tensor], shard_bytes: int = SHARD_BYTES
) -> list[Path]:
    """Write `tensors`, which come in the order planned and are cast as planned, into `folder`; returns the files.

    One tensor is in memory at a time.
    """
    shards = _shards(planned, shard_bytes)
    coming = iter(tensors)
    if len(shards) == 1:
        _write(folder / SINGLE, planned, coming)
        return [folder / SINGLE]
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        _write(folder / name, shard, coming)
    index = {
        "metadata": {"total_size": sum(one.nbytes for one in planned)},
        "weight_map": {one.name: name for name, shard in zip(names, shards, strict=True) for one in shard},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return [*(folder / name for name in names), folder / INDEX]


def _shards(planned: list[Planned], most: int) -> list[list[Planned]]:
    shards: list[list[Planned]] = [[]]
    size = 0
    for one in planned:
        if shards[-1] and size + one.nbytes > most:
            shards.append([])
            size = 0
        shards[-1].append(one)
        size += one.nbytes
    return shards


def _write(path: Path, planned: list[Planned], tensors: Iterator[Tensor]) -> None:
    document: dict[str, object] = {"__metadata__": {"format": "pt"}}  # transformers asks for it
    at = 0
    for one in planned:
        offsets = [at, at + one.nbytes]
        document[one.name] = {"dtype": _FILE_DTYPES[one.dtype], "shape": list(one.shape), "data_offsets": offsets}
        at += one.nbytes
    header = json.dumps(document, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    with open(path, "wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        for one in planned:
            _write_bytes(out, next(tensors).detach().to(one.dtype).contiguous())


def _write_bytes(out: BinaryIO, tensor: Tensor) -> None:
    if tensor.numel():
        tensor.view(-1).view(torch.uint8).numpy().tofile(out)
