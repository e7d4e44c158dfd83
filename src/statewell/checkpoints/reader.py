"""Weights out of files: mapped where they can stay as they lie, copied once where they cannot.

A file is mapped privately: its tensors are views that cost nothing until they are read, and a write to one changes this
process's copy of a page, never the file. What is copied is copied in small parts, and the pages of the file read for it
are let go at once, so that a load never holds a weight twice.
"""

from __future__ import annotations

import math
import mmap
import sys
from pathlib import Path

import torch
from torch import Tensor

from statewell.checkpoints.rules import Pieces
from statewell.errors import CheckpointError
from statewell.formats.listing import Listing, StoredTensor

TORCH_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
BYTES = {"U8": torch.uint8}
_PART = 4 * 2**20  # bytes copied before the pages they came from are let go


class MappedFiles:
    """The tensors of a listing. Raises CheckpointError for a file that is shorter than its header says by now."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._maps: dict[Path, mmap.mmap] = {}
        self._copied = 0

    def tensor(self, name: str) -> Tensor:
        """The tensor as it lies in its file, as a view; a copy where it does not lie on a multiple of its size."""
        stored = self._listing.tensors[name]
        entry = stored.entry
        dtype = (TORCH_DTYPES | BYTES)[entry.dtype]
        if math.prod(entry.shape) == 0:
            return torch.empty(entry.shape, dtype=dtype)
        mapped = self._map(stored)
        if entry.begin % dtype.itemsize:
            raw = torch.frombuffer(mapped, dtype=torch.uint8, count=entry.nbytes, offset=entry.begin)
            return raw.clone().view(dtype).view(entry.shape)
        count = entry.nbytes // dtype.itemsize
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=entry.begin).view(entry.shape)

    def settle(self, pieces: Pieces, shape: torch.Size, dtype: torch.dtype | None) -> Tensor:
        """One tensor of the model: the view itself where it has `dtype` (None: whichever it has), else a copy."""
        if isinstance(pieces, Tensor):
            if dtype is None or pieces.dtype == dtype:
                return pieces
            # of the same strides: a transposed view is copied in the file's order
            whole = torch.empty_like(pieces, dtype=dtype)
            self._copy(pieces, whole)
            return whole
        first = next(pieces)
        stacked = torch.empty(shape, dtype=dtype or first.dtype)
        self._copy(first, stacked[0])
        for index, piece in enumerate(pieces, start=1):
            self._copy(piece, stacked[index])
        return stacked

    def _copy(self, source: Tensor, into: Tensor) -> None:
        if source.dim() == 0:
            into.copy_(source)
            return
        outer = max(range(source.dim()), key=source.stride)
        per_row = max(1, source.nbytes // source.shape[outer])
        rows = max(1, _PART // per_row)
        for part, place in zip(source.split(rows, dim=outer), into.split(rows, dim=outer), strict=True):
            place.copy_(part)
            self._copied += part.nbytes
            if self._copied >= _PART:
                self._let_go()

    def _let_go(self) -> None:
        """Give the pages read so far back: the views stay good, what is read again comes from the page cache."""
        self._copied = 0
        if sys.platform == "linux":
            for mapped in self._maps.values():
                mapped.madvise(mmap.MADV_DONTNEED)

    def _map(self, stored: StoredTensor) -> mmap.mmap:
        path, entry = stored.path, stored.entry
        if path not in self._maps:
            try:
                with open(path, "rb") as opened:
                    # ACCESS_COPY: writes stay in this process, as training them would
                    self._maps[path] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:  # ValueError: the file has become empty
                raise CheckpointError(f"{path} cannot be mapped ({error}); use another copy of it.") from error
        mapped = self._maps[path]
        if entry.end > len(mapped):
            raise CheckpointError(
                f"{path} was shortened: tensor {entry.name} ends at byte {entry.end:,}, the file has {len(mapped):,}; "
                "use another copy of it."
            )
        return mapped
