"""The bytes a memory takes, as arithmetic: nothing here allocates. The planner and the run-time memories share it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from statewell.errors import ConfigError, nearest

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
PAGE = 128  # tokens a growing cache takes at a time unless stated


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element; raises ConfigError for a dtype no memory is kept in."""
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"'{dtype}' is not a memory dtype; {nearest(dtype, DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One tensor of a memory, described per row.

    name: as in `memory.tensors()`. shape: per row, or per row and token when it grows. dtype: fp64, fp32, bf16 or fp16.
    grows: whether every token adds another `shape`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    grows: bool = False

    def __post_init__(self) -> None:
        dtype_bytes(self.dtype)

    @property
    def bytes(self) -> int:
        """Bytes per row, or per row and token when it grows."""
        return math.prod(self.shape) * dtype_bytes(self.dtype)


@dataclass(frozen=True, kw_only=True)
class MemorySpec:
    """What one or more memories hold per row: `fixed_bytes` whatever the length, `bytes_per_token` for each token."""

    tensors: tuple[TensorSpec, ...]

    @property
    def fixed_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors if not tensor.grows)

    @property
    def bytes_per_token(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors if tensor.grows)

    def used(self, lengths: Iterable[int]) -> int:
        """Bytes that rows holding `lengths` tokens need."""
        return sum(self.fixed_bytes + length * self.bytes_per_token for length in lengths)

    def reserved(self, lengths: Iterable[int], page: int = PAGE, capacity: int | None = None) -> int:
        """Bytes that slots and pages of `page` tokens hold for rows of `lengths` tokens.

        With a `capacity`, each row has one page of that many tokens from the start, filled or not.
        """
        if capacity is not None:
            return sum(self.fixed_bytes + capacity * self.bytes_per_token for _ in lengths)
        return sum(self.fixed_bytes + -(-length // page) * page * self.bytes_per_token for length in lengths)
