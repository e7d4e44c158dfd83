"""What every memory can do. Bytes, snapshots and forks are written once here, from the tensors its store holds."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from torch import Tensor

from statewell.config.memory import MemorySpec
from statewell.errors import StatewellError
from statewell.memory.segments import Segments
from statewell.memory.store import RowStore, Store

Inputs = TypeVar("Inputs")


@dataclass(frozen=True)
class Snapshot:
    """What a memory held: its tensors without unfilled pages, and the tokens of each row. Later writes do not move
    it."""

    tensors: dict[str, Tensor]
    lengths: tuple[int, ...]


class Memory(ABC, Generic[Inputs]):
    """One layer's memory: the definition one token at a time, and `mix` for many.

    `forget`, `write` and `read`, in this order, take one token of every row ([rows, H, K], ...); `write` counts it.
    `mix`
    takes a packed stream ([1, T, H, K], ...); a law holds it equal to the loop of the three.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    @abstractmethod
    def forget(self, x: Inputs) -> None:
        """Fade what is held."""

    @abstractmethod
    def write(self, x: Inputs) -> None:
        """Store or correct."""

    @abstractmethod
    def read(self, x: Inputs) -> Tensor:
        """Retrieve: [rows, HV, V]."""

    @abstractmethod
    def mix(self, x: Inputs, segments: Segments) -> Tensor:
        """All tokens of the stream through forget, write and read: [1, T, HV, V]. The rows have then taken them in."""

    @property
    def kept(self) -> RowStore:
        """The store as rows; raises StatewellError in a training pass, which keeps none."""
        if not isinstance(self.store, RowStore):
            raise StatewellError("a training pass keeps no memory; make one with new_memory(rows).")
        return self.store

    @property
    def spec(self) -> MemorySpec:
        """The same memory without storage."""
        return self.kept.spec

    @property
    def lengths(self) -> list[int]:
        """Tokens each row has taken in."""
        return self.kept.lengths

    def tensors(self) -> dict[str, Tensor]:
        """All that is allocated for the rows."""
        return self.kept.tensors()

    def used(self) -> int:
        """Bytes the tokens held so far need."""
        return self.spec.used(self.lengths)

    def reserved(self) -> int:
        """Bytes that slots and pages hold: the sum over `tensors()`."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def snapshot(self) -> Snapshot:
        """A copy of everything held, exact to the bit."""
        tensors = {name: tensor.clone() for name, tensor in self.kept.used_tensors().items()}
        return Snapshot(tensors, tuple(self.lengths))

    def restore(self, snapshot: Snapshot) -> None:
        """Hold again exactly what `snapshot` held; raises CheckpointError where it does not fit."""
        self.kept.load(snapshot.tensors, list(snapshot.lengths))

    def fork(self) -> Self:
        """A memory that continues from here by itself; neither moves the other."""
        twin = copy.copy(self)
        twin.store = self.kept.empty_twin()
        twin.restore(Snapshot(self.kept.used_tensors(), tuple(self.lengths)))
        return twin
