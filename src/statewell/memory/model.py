"""A whole model's memory: one memory per layer and the tokens each row has taken in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statewell.errors import CheckpointError
from statewell.memory.base import Memory, Snapshot


class ModelMemory:
    """What a model remembers for each of its rows. Made by `model.new_memory(rows)`; advanced by `model(ids, memory)`.

    layers: one memory per layer, all of the same rows.
    """

    def __init__(self, layers: Sequence[Memory[Any]]) -> None:
        self.layers = tuple(layers)

    @property
    def lengths(self) -> Tensor:
        """[rows] int64, tokens each row has taken in."""
        return torch.tensor(self.layers[0].lengths, dtype=torch.int64)

    def tensors(self) -> dict[str, Tensor]:
        """All that is allocated, by `layer.name`."""
        return {
            f"{i}.{name}": tensor for i, layer in enumerate(self.layers) for name, tensor in layer.tensors().items()
        }

    def used(self) -> int:
        """Bytes the tokens held so far need."""
        return sum(layer.used() for layer in self.layers)

    def reserved(self) -> int:
        """Bytes that slots and pages hold: the sum over `tensors()`."""
        return sum(layer.reserved() for layer in self.layers)

    def snapshot(self) -> Snapshot:
        """A copy of everything held, exact to the bit; later tokens do not move it."""
        parts = [layer.snapshot() for layer in self.layers]
        tensors = {f"{i}.{name}": tensor for i, part in enumerate(parts) for name, tensor in part.tensors.items()}
        return Snapshot(tensors, parts[0].lengths)

    def restore(self, snapshot: Snapshot) -> None:
        """Hold again exactly what `snapshot` held. Raises CheckpointError, and changes nothing, where it does not
        fit."""
        parts: list[dict[str, Tensor]] = [{} for _ in self.layers]
        for name, tensor in snapshot.tensors.items():
            layer, own_name = name.split(".", 1)
            if int(layer) >= len(parts):
                raise CheckpointError(
                    f"the snapshot holds layer {layer}, this model has {len(parts)}; it is another model's."
                )
            parts[int(layer)][own_name] = tensor
        for layer, part in zip(self.layers, parts, strict=True):
            layer.kept.check_fits(part, list(snapshot.lengths))
        for layer, part in zip(self.layers, parts, strict=True):
            layer.restore(Snapshot(part, snapshot.lengths))

    def fork(self) -> ModelMemory:
        """A memory that continues from here by itself; neither moves the other."""
        return ModelMemory([layer.fork() for layer in self.layers])

    def fill_random(self, lengths: Sequence[int], seed: int) -> None:
        """Hold `lengths` tokens of seeded noise, for timing at a context without running up to it."""
        generator = torch.Generator().manual_seed(seed)
        for layer in self.layers:
            layer.kept.fill_random(list(lengths), generator)
