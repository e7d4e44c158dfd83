"""Experts read from their files when tokens choose them, kept in a cache that never passes its bytes.

The cache is one block of memory cut into slots of one expert; all layers share it, and the expert that was used longest
ago makes room. Reads run in threads of their own: those of a layer's missing experts while the ones at hand compute,
those of the next layer's likely ones while its attention does. How many slots there are changes when bytes are read,
never what is computed. Which file holds what was settled before, in `packed.py`.

One thread at a time may ask; the reading threads only fill slots.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import torch
from torch import Tensor

from statewell.checkpoints.expert_files import ExpertFiles, StoredExpert, expert_bytes
from statewell.errors import LimitError
from statewell.kernels.packed import Packed, PackedExpert

READERS = 2  # reads under way at once: enough to keep a disk busy while one of them begins
# A token's experts are read ahead for the next token where at least this share of them came again lately; other
# guesses would only cost their bytes. Where routing repeats less, nothing is read before it is chosen.
WORTH_GUESSING = 0.25
MEMORY = 0.9  # how much of the share known so far stays at each step

Key = tuple[int, int]  # layer, expert


@dataclass
class CacheFigures:
    """What a cache did. hits, misses: experts asked for that were here or on their way, and those that were not.
    read_ahead: experts read on a guess, of which used_ahead were asked for in time. read_bytes: of all reads."""

    capacity_bytes: int
    hits: int = 0
    misses: int = 0
    read_ahead: int = 0
    used_ahead: int = 0
    read_bytes: int = 0


@dataclass
class _Slot:
    """place: in the block. arrived: done when its bytes are there. guessed: read ahead and not asked for yet."""

    place: int
    arrived: Future[None]
    guessed: bool


@dataclass
class _Layer:
    """latest: the experts of the last step. repeats: the share of a step's experts that the one before had, lately."""

    experts: Sequence[StoredExpert]
    latest: tuple[int, ...] = ()
    repeats: float = 0.0


class CachedExperts:
    """One layer's experts, by way of the cache of all."""

    def __init__(self, cache: ExpertCache, layer: int) -> None:
        self.cache = cache
        self._layer = layer

    def stream(self, numbers: Sequence[int]) -> Iterator[tuple[int, PackedExpert]]:
        """Each expert once: those that are here, then the others as their bytes arrive."""
        return self.cache.stream(self._layer, numbers)


class ExpertCache:
    """The experts of `layers`, of which at most `capacity` bytes are in memory.

    at_once: the experts one token uses in a layer. All experts have the same shapes. Raises LimitError for a capacity
    that cannot hold those of one token, CheckpointError for a file that cannot be opened.
    """

    def __init__(self, capacity: int, at_once: int, layers: Sequence[Sequence[StoredExpert]]) -> None:
        size = expert_bytes(layers[0][0])
        slots = min(capacity // size, sum(len(experts) for experts in layers))
        if slots < at_once:
            raise LimitError(
                f"an expert cache of {capacity:,} bytes cannot hold the {at_once} experts that a token uses in one "
                f"layer, {at_once * size:,} bytes; give it at least that."
            )
        self._layers = [_Layer(experts) for experts in layers]
        self._shapes = [stored.entry.shape for stored in layers[0][0]]
        self._room = torch.empty(slots, size, dtype=torch.uint8)
        self._bytes = self._room.numpy().data.cast("B")
        self._free = list(range(slots))
        self._held: OrderedDict[Key, _Slot] = OrderedDict()  # first the one used longest ago
        self._files = ExpertFiles(stored.path for experts in layers for expert in experts for stored in expert)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="statewell-experts")
        self._closing = weakref.finalize(self, _close, self._readers, self._files)
        self.figures = CacheFigures(self._room.nbytes)

    @property
    def slots(self) -> int:
        """How many experts fit."""
        return len(self._room)

    def held(self) -> list[StoredExpert]:
        """The experts that are here or on their way, as they lie in the files."""
        return [self._layers[layer].experts[number] for layer, number in self._held]

    def empty(self) -> None:
        """Let every expert go, after the reads under way; none may be in use."""
        wait([slot.arrived for slot in self._held.values()])
        self._free += [slot.place for slot in self._held.values()]
        self._held.clear()

    def close(self) -> None:
        """Wait for the reads under way and close the files; also done when the cache is no longer used."""
        self._closing()

    def stream(self, layer: int, numbers: Sequence[int]) -> Iterator[tuple[int, PackedExpert]]:
        """Each expert of the layer once, those that are here first; then the next layer's likely ones are read.

        Raises CheckpointError for a file that has become shorter.
        """
        asked = [(layer, number) for number in numbers]
        here, missing = ([key for key in asked if (key in self._held) is kept] for kept in (True, False))
        self._count(layer, here, missing)
        unread, wanted = deque(missing), set(here)
        for key in (*here, *missing):
            while unread and (place := self._make_room(wanted)) is not None:
                wanted.add(unread[0])
                self._start_read(unread.popleft(), place, guessed=False)
            yield key[1], self._arrived(key)
            wanted.discard(key)
            self._held.move_to_end(key)
        self._read_ahead((layer + 1) % len(self._layers))

    def _count(self, layer: int, here: Sequence[Key], missing: Sequence[Key]) -> None:
        figures, known = self.figures, self._layers[layer]
        figures.hits += len(here)
        figures.misses += len(missing)
        for key in here:
            figures.used_ahead += self._held[key].guessed
            self._held[key].guessed = False
        numbers = tuple(number for _, number in (*here, *missing))
        share = len(set(numbers).intersection(known.latest)) / max(1, len(numbers))
        known.repeats = MEMORY * known.repeats + (1 - MEMORY) * share
        known.latest = numbers

    def _read_ahead(self, layer: int) -> None:
        """Start reading what the last step used in `layer`, where that is likely to come again."""
        known = self._layers[layer]
        likely = {(layer, number) for number in known.latest}
        if known.repeats < WORTH_GUESSING or len(likely) > self.slots:
            return
        for key in sorted(likely - self._held.keys()):
            place = self._make_room(likely)
            if place is not None:
                self._start_read(key, place, guessed=True)

    def _make_room(self, wanted: set[Key]) -> int | None:
        """A free slot, or that of the expert used longest ago which is not `wanted`; None where all are."""
        if self._free:
            return self._free.pop()
        oldest = next((key for key in self._held if key not in wanted), None)
        if oldest is None:
            return None
        slot = self._held.pop(oldest)
        if not slot.arrived.cancel():
            wait([slot.arrived])  # a guess still being read: its bytes must not come into another's slot
        return slot.place

    def _start_read(self, key: Key, place: int, guessed: bool) -> None:
        layer, number = key
        expert = self._layers[layer].experts[number]
        size = self._room.shape[1]
        into = self._bytes[place * size : (place + 1) * size]
        self._held[key] = _Slot(place, self._readers.submit(self._files.read, expert, into), guessed)
        self.figures.read_bytes += size
        self.figures.read_ahead += guessed

    def _arrived(self, key: Key) -> PackedExpert:
        """The expert as views of its slot, once its bytes are there. One that cannot be read leaves the cache."""
        slot = self._held[key]
        if slot.arrived.exception() is not None:
            del self._held[key]
            self._free.append(slot.place)
        slot.arrived.result()
        sizes = [math.prod(shape) for shape in self._shapes]
        parts = self._room[slot.place].split(sizes)
        tensors: list[Tensor] = [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]
        return PackedExpert(*(Packed(*pair) for pair in zip(tensors[::2], tensors[1::2], strict=True)))


def _close(readers: ThreadPoolExecutor, files: ExpertFiles) -> None:
    readers.shutdown(wait=True, cancel_futures=True)
    files.close()
