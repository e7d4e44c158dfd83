"""Where a memory's tensors live: fixed slots by row, growing caches by row and page, or nowhere at all.

A growing cache is one tensor per row, enlarged by whole pages when it is full. Moving a row's cache to a larger tensor
once
every 128 tokens costs 1/128 of what the attention over it reads in that time. Values are kept, never their graph.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from statewell.config.memory import PAGE, MemorySpec, TensorSpec
from statewell.errors import CheckpointError
from statewell.memory.segments import Segments

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Slots(NamedTuple):
    """A kept tensor [M, ...] to be changed in place, and which of its rows: int64 [N], or None for all in order."""

    held: Tensor
    rows: Tensor | None


class Store(Protocol):
    """What a mechanism asks of its storage."""

    @property
    def lengths(self) -> list[int]:
        """Tokens each row has taken in."""
        ...

    def take(self, name: str, segments: Segments) -> Tensor | None:
        """The fixed tensor of the segments' rows, [N, ...], or None when nothing is kept."""
        ...

    def put(self, name: str, segments: Segments, value: Tensor) -> None:
        """Replace the fixed tensor of the segments' rows by `value`."""
        ...

    def slots(self, name: str, segments: Segments) -> Slots | None:
        """Where the fixed tensor of the segments' rows lies, or None when nothing is kept."""
        ...

    def append(self, name: str, segments: Segments, stream: Tensor) -> None:
        """Add each segment's part of `stream` [T, ...] to its row's growing tensor, at `segments.start`."""
        ...

    def advance(self, segments: Segments) -> None:
        """Count the segments' tokens as taken in."""
        ...


class NothingKept:
    """The store of a training pass: starts empty, keeps nothing, so that recomputing a block cannot write twice."""

    @property
    def lengths(self) -> list[int]:
        """No rows."""
        return []

    def take(self, name: str, segments: Segments) -> Tensor | None:
        return None

    def put(self, name: str, segments: Segments, value: Tensor) -> None:
        """Nothing is kept."""

    def slots(self, name: str, segments: Segments) -> None:
        """Nothing is kept."""

    def append(self, name: str, segments: Segments, stream: Tensor) -> None:
        """Nothing is kept."""

    def advance(self, segments: Segments) -> None:
        """Nothing is counted."""


class RowStore:
    """Rows of memory as `spec` describes them.

    rows: how many. device: of every tensor. capacity: tokens reserved per row from the start (one page of that size);
    None lets caches grow by pages of 128 tokens.
    """

    def __init__(self, spec: MemorySpec, rows: int, device: torch.device, capacity: int | None = None) -> None:
        self.spec = spec
        self.lengths = [0] * rows
        self.capacity = capacity
        self._device = device
        self._fixed = {
            t.name: torch.zeros(rows, *t.shape, dtype=DTYPES[t.dtype], device=device)
            for t in spec.tensors
            if not t.grows
        }
        self._growing = {t.name: [self._pages(t, 0) for _ in range(rows)] for t in spec.tensors if t.grows}

    def _pages(self, tensor: TensorSpec, length: int) -> Tensor:
        """Room for `length` tokens of one row, in whole pages."""
        page = self.capacity or PAGE
        pages = max(-(-length // page), 0 if self.capacity is None else 1)
        return torch.empty(pages * page, *tensor.shape, dtype=DTYPES[tensor.dtype], device=self._device)

    def take(self, name: str, segments: Segments) -> Tensor:
        held = self._fixed[name]
        return held if self._is_whole(segments) else held[list(self._rows(segments))]

    def put(self, name: str, segments: Segments, value: Tensor) -> None:
        held = self._fixed[name]
        if not self._is_whole(segments):
            held[list(self._rows(segments))] = value.detach().to(held.dtype)
        elif value.requires_grad:
            # a backward may still need the value as it is, and slots are changed in place
            self._fixed[name] = value.detach().to(held.dtype, copy=True).contiguous()
        else:
            self._fixed[name] = value.to(held.dtype).contiguous()

    def slots(self, name: str, segments: Segments) -> Slots:
        held = self._fixed[name]
        return Slots(held, None if self._is_whole(segments) else segments.row_index.to(held.device))

    def append(self, name: str, segments: Segments, stream: Tensor) -> None:
        for row, begin, start, length in zip(
            self._rows(segments), segments.bounds, segments.start, segments.lengths, strict=False
        ):
            self._room(name, row, start, start + length)[start : start + length] = stream[
                begin : begin + length
            ].detach()

    def held(self, name: str, row: int) -> Tensor:
        """The tokens the row has taken in: [length, ...], a view of its growing tensor."""
        return self._growing[name][row][: self.lengths[row]]

    def advance(self, segments: Segments) -> None:
        for row, length in zip(self._rows(segments), segments.lengths, strict=True):
            self.lengths[row] += length

    def tensors(self) -> dict[str, Tensor]:
        """All that is allocated; a growing cache has one entry per row, `name.row`."""
        growing = {f"{name}.{row}": held for name, rows in self._growing.items() for row, held in enumerate(rows)}
        return {**self._fixed, **growing}

    def used_tensors(self) -> dict[str, Tensor]:
        """As `tensors`, without the unfilled end of the last page."""
        growing = {
            f"{name}.{row}": self.held(name, row) for name, rows in self._growing.items() for row in range(len(rows))
        }
        return {**self._fixed, **growing}

    def check_fits(self, tensors: dict[str, Tensor], lengths: list[int]) -> None:
        """Raise CheckpointError unless `tensors` and `lengths` are such as `used_tensors` gives for these rows."""
        expected = {name: held.shape for name, held in self._fixed.items()}
        for tensor in self.spec.tensors:
            if tensor.grows:
                expected |= {
                    f"{tensor.name}.{row}": torch.Size((length, *tensor.shape)) for row, length in enumerate(lengths)
                }
        found = {name: tensor.shape for name, tensor in tensors.items()}
        if len(lengths) != len(self.lengths) or found != expected:
            raise CheckpointError(
                f"a snapshot of {len(lengths)} rows holding {sorted(found)} does not fit {len(self.lengths)} rows; "
                "restore it into new_memory of the same model and rows."
            )

    def load(self, tensors: dict[str, Tensor], lengths: list[int]) -> None:
        """Become exactly what `used_tensors` and `lengths` said elsewhere; raises CheckpointError where they do not
        fit."""
        self.check_fits(tensors, lengths)
        self.lengths = list(lengths)
        self._fixed = {
            name: tensors[name].detach().to(held.device, held.dtype, copy=True) for name, held in self._fixed.items()
        }
        for tensor in self.spec.tensors:
            if tensor.grows:
                self._growing[tensor.name] = [
                    self._filled(tensor, tensors[f"{tensor.name}.{row}"]) for row in range(len(lengths))
                ]

    def empty_twin(self) -> RowStore:
        """A store of the same shape that holds nothing yet."""
        return RowStore(self.spec, len(self.lengths), self._device, self.capacity)

    def fill_random(self, lengths: list[int], generator: torch.Generator) -> None:
        """Hold `lengths` tokens of seeded noise: for timing at a context without running up to it."""
        self.lengths = list(lengths)
        for name, held in self._fixed.items():
            noise = torch.randn(held.shape, generator=generator, dtype=torch.float32)
            self._fixed[name] = noise.to(held.device, held.dtype)
        for tensor in self.spec.tensors:
            if tensor.grows:
                noise = (torch.randn(length, *tensor.shape, generator=generator) for length in lengths)
                self._growing[tensor.name] = [self._filled(tensor, rows) for rows in noise]

    def _filled(self, tensor: TensorSpec, value: Tensor) -> Tensor:
        pages = self._pages(tensor, len(value))
        pages[: len(value)] = value
        return pages

    def _room(self, name: str, row: int, length: int, needed: int) -> Tensor:
        """The row's tensor, enlarged by whole pages when it has no room for `needed` tokens."""
        held = self._growing[name][row]
        if len(held) < needed:
            tensor = next(tensor for tensor in self.spec.tensors if tensor.name == name)
            larger = self._pages(tensor, needed)
            larger[:length] = held[:length]
            self._growing[name][row] = held = larger
        return held

    def _rows(self, segments: Segments) -> tuple[int, ...]:
        return segments.rows if segments.rows is not None else tuple(range(segments.count))

    def _is_whole(self, segments: Segments) -> bool:
        return self._rows(segments) == tuple(range(len(self.lengths)))
