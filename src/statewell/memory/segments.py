"""How a packed stream of tokens maps to rows of memory: the only description of a batch below the front door."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from statewell.errors import ShapeError


@dataclass(frozen=True)
class Segments:
    """N runs of tokens laid end to end in a [1, T] stream.

    bounds: N+1 offsets from 0 to T, increasing. rows: the memory row each segment continues, or None when nothing is
    kept
    (packed training documents). start: tokens each segment's row has already taken in. Raises ShapeError for offsets
    that
    do not increase, a row named twice, or tuples whose lengths disagree.
    """

    bounds: tuple[int, ...]
    rows: tuple[int, ...] | None
    start: tuple[int, ...]
    cu_seqlens: Tensor = field(init=False, repr=False, compare=False)  # bounds as the operations take them, int64

    def __post_init__(self) -> None:
        if len(self.bounds) < 2 or self.bounds[0] != 0:
            raise ShapeError(f"segment bounds {self.bounds} must start at 0 and hold at least one segment.")
        if any(end <= begin for begin, end in zip(self.bounds, self.bounds[1:], strict=False)):
            raise ShapeError(f"segment bounds {self.bounds} must increase; leave empty segments out.")
        if len(self.start) != self.count or (self.rows is not None and len(self.rows) != self.count):
            raise ShapeError(f"{self.count} segments need as many starts and rows; give one of each per segment.")
        if self.rows is not None and len(set(self.rows)) != self.count:
            raise ShapeError(f"rows {self.rows} name one twice; a row can take in one segment at a time.")
        object.__setattr__(self, "cu_seqlens", torch.tensor(self.bounds))

    @classmethod
    def equal(
        cls,
        count: int,
        length: int,
        rows: tuple[int, ...] | None = None,
        start: tuple[int, ...] | None = None,
    ) -> Segments:
        """`count` segments of `length` tokens each: a plain [B, T] batch."""
        bounds = tuple(range(0, count * length + 1, length)) if length else (0,)
        return cls(bounds, rows, start or (0,) * count)

    @property
    def count(self) -> int:
        return len(self.bounds) - 1

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(end - begin for begin, end in zip(self.bounds, self.bounds[1:], strict=False))

    @property
    def single(self) -> bool:
        """Whether every segment is one token: a decode step."""
        return self.bounds[-1] == self.count

    @property
    def fresh(self) -> bool:
        """Whether every segment starts from an empty memory."""
        return not any(self.start)

    @property
    def row_index(self) -> Tensor:
        """[N] int64, the row of each segment; counted from 0 where none is named."""
        return torch.tensor(range(self.count) if self.rows is None else self.rows, dtype=torch.int64)

    def positions(self, device: torch.device) -> Tensor:
        """[T] int64: each token's place in its row, start + offset."""
        offsets = [torch.arange(begin, begin + length) for begin, length in zip(self.start, self.lengths, strict=True)]
        return torch.cat(offsets).to(device)
