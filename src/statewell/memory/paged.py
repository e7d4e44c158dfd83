"""The memory of many conversations of one model, which come and go row by row and may share what they begin with.

Fixed states lie in slots, one per row. Growing caches lie in pages of 128 tokens; one page is one flat buffer that
holds those tokens for every layer. What a conversation holds can be kept aside (`hold`): its states are copied, its
pages are shared, and whoever writes into a page that others hold takes a copy first. Start with `PagedMemory`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from statewell.config.memory import PAGE, MemorySpec, TensorSpec
from statewell.errors import CheckpointError, StatewellError
from statewell.kernels.pages import Kept, Pages
from statewell.memory.base import Memory, Snapshot
from statewell.memory.pools import Holders, Rows
from statewell.memory.segments import Segments
from statewell.memory.store import DTYPES, Slots


@dataclass(frozen=True, eq=False)
class Held:
    """What a conversation held at some token: copied states by `layer.name`, shared pages, the number of tokens."""

    states: dict[str, Tensor]
    pages: tuple[int, ...]
    length: int

    @property
    def state_bytes(self) -> int:
        """Of the copied states; pages are counted where they lie."""
        return sum(state.nbytes for state in self.states.values())


@dataclass(frozen=True)
class PagedBytes:
    """slots: fixed states of all rows, in use or not. pages: that someone holds. held: states kept aside."""

    slots: int
    pages: int
    held: int

    @property
    def reserved(self) -> int:
        return self.slots + self.pages + self.held


class PagedMemory:
    """Rows for at most `rows` conversations at a time, for the layers that `specs` describe.

    `layers`, one memory per layer, is set by the model that makes it. page: tokens per page, a multiple of 64.
    """

    layers: tuple[Memory[Any], ...]

    def __init__(self, specs: Sequence[MemorySpec], rows: int, device: torch.device, page: int = PAGE) -> None:
        self.page = page
        self.lengths = [0] * rows
        self._device = device
        self._rows, self._holders = Rows(rows), Holders()
        self._buffers: dict[int, Tensor] = {}
        self._tables: list[list[int]] = [[] for _ in range(rows)]
        self._held: set[Held] = set()
        self._held_bytes = 0
        self._pass: tuple[Segments, Pages] | None = None
        self._dtype, self._page_elements = torch.float32, 0
        self.stores = tuple(PagedStore(self, spec, rows, device) for spec in specs)
        self._slot_bytes = sum(store.slot_bytes for store in self.stores)

    def place(self, tensor: TensorSpec) -> int:
        """Room for one more growing tensor in every page: the element of a page where it begins."""
        at, dtype = self._page_elements, DTYPES[tensor.dtype]
        if at and dtype is not self._dtype:
            raise StatewellError(f"caches of {dtype} and {self._dtype} cannot share pages; keep both in one dtype.")
        width = tensor.bytes // dtype.itemsize
        self._dtype, self._page_elements = dtype, at + width * self.page
        return at

    @property
    def page_bytes(self) -> int:
        """Of one page of all layers; 0 where nothing grows."""
        return self._page_elements * self._dtype.itemsize

    @property
    def rows_in_use(self) -> int:
        """Conversations open now."""
        return self._rows.taken

    def bytes(self) -> PagedBytes:
        """Bytes of every tensor, by what it is for."""
        return PagedBytes(
            slots=self._slot_bytes,
            pages=len(self._buffers) * self.page_bytes,
            held=self._held_bytes,
        )

    def open(self, held: Held | None = None, length: int | None = None) -> int:
        """A row: empty, or continuing from `held`, which stays as it is; from its first `length` tokens where given.

        Raises LimitError when all rows are in use, StatewellError for a shorter length where states are kept.
        """
        tokens = 0 if held is None else held.length if length is None else length
        if held is not None and tokens != held.length and not (self.cuts and 0 <= tokens < held.length):
            raise StatewellError(f"what was held at token {held.length} cannot be continued from token {tokens}.")
        row = self._rows.take()
        self._tables[row] = list(held.pages[: -(-tokens // self.page)]) if held else []
        self._holders.share(self._tables[row])
        self.lengths[row] = tokens
        for index, store in enumerate(self.stores):
            store.begin(row, {} if held is None else _of_layer(held.states, index))
        return row

    def close(self, row: int) -> None:
        """Forget the row; what was held of it stays."""
        self._rows.give_back(row)
        self._free(self._tables[row])
        self._tables[row], self.lengths[row] = [], 0

    def hold(self, row: int) -> Held:
        """What the row holds now, for `open`, until `drop`."""
        states = {
            f"{index}.{name}": state.clone()
            for index, store in enumerate(self.stores)
            for name, state in store.states(row).items()
        }
        held = Held(states, tuple(self._tables[row]), self.lengths[row])
        self._holders.share(held.pages)
        self._held.add(held)
        self._held_bytes += held.state_bytes
        return held

    def drop(self, held: Held) -> None:
        """Let `held` go. Raises StatewellError when it was let go before."""
        if held not in self._held:
            raise StatewellError("this was let go before, or belongs to another memory.")
        self._held.remove(held)
        self._held_bytes -= held.state_bytes
        self._free(held.pages)

    @property
    def cuts(self) -> bool:
        """Whether nothing but growing caches is kept, so that a row can go back to any earlier token."""
        return not self._slot_bytes

    def cut(self, row: int, length: int) -> None:
        """The row goes back to its first `length` tokens. Raises StatewellError where states are kept."""
        if not self.cuts or not 0 <= length <= self.lengths[row]:
            raise StatewellError(f"row {row} of {self.lengths[row]} tokens cannot go back to {length}.")
        pages = -(-length // self.page)
        self._free(self._tables[row][pages:])
        self._tables[row], self.lengths[row] = self._tables[row][:pages], length

    def new_pages(self, row: int, count: int) -> int:
        """Pages that `count` more tokens of the row will take, copies of shared ones among them."""
        length, table = self.lengths[row], self._tables[row]
        if not self.page_bytes:
            return 0
        shared = sum(self._holders.count(page) > 1 for page in table[length // self.page :])
        return shared + max(0, -(-(length + count) // self.page) - len(table))

    def used(self) -> PagedBytes:
        """As `bytes`, counting only what tokens need: slots of open rows, filled places of pages."""
        filled: dict[int, int] = {}
        tables = [(table, length) for table, length in zip(self._tables, self.lengths, strict=True) if table]
        for table, length in (*tables, *((held.pages, held.length) for held in self._held)):
            for place, page in enumerate(table):
                filled[page] = max(filled.get(page, 0), min(self.page, length - place * self.page))
        per_token = self.page_bytes // self.page
        slots = self._slot_bytes // self._rows.count * self._rows.taken
        return PagedBytes(slots=slots, pages=sum(filled.values()) * per_token, held=self._held_bytes)

    def tensors(self) -> dict[str, Tensor]:
        """All that is allocated: slots by `layer.name`, pages by number, states held by a number of their own."""
        pages = {f"page.{number}": buffer for number, buffer in self._buffers.items()}
        slots = {f"{index}.{name}": held for index, s in enumerate(self.stores) for name, held in s.tensors().items()}
        every = enumerate(self._held)
        return pages | slots | {f"held.{at}.{name}": t for at, held in every for name, t in held.states.items()}

    def by_layer(self) -> list[tuple[PagedBytes, PagedBytes]]:
        """Bytes used and bytes reserved by each layer; over all layers they add up to `used` and `bytes`."""
        page, per_row = self.page_bytes // self.page or 1, self._slot_bytes // self._rows.count or 1
        tokens, places = self.used().pages // page, len(self._buffers) * self.page
        rows, aside = self._rows.taken, self._held_bytes // per_row
        return [
            (
                PagedBytes(spec.fixed_bytes * rows, spec.bytes_per_token * tokens, spec.fixed_bytes * aside),
                PagedBytes(
                    spec.fixed_bytes * self._rows.count, spec.bytes_per_token * places, spec.fixed_bytes * aside
                ),
            )
            for spec in (store.spec for store in self.stores)
        ]

    def snapshot(self, held: Held, length: int | None = None) -> Snapshot:
        """As `model.new_memory(1)` gives it after the same tokens, or the first `length` of them; a copy.

        Raises StatewellError for a shorter length where states are kept.
        """
        length = held.length if length is None else length
        if length != held.length and not (self.cuts and 0 <= length < held.length):
            raise StatewellError(f"what was held at token {held.length} is no snapshot of token {length}.")
        tensors = {name: state[None].clone() for name, state in held.states.items()}
        buffers = [self._buffers[page] for page in held.pages]
        for index, store in enumerate(self.stores):
            for name, tokens in store.gathered(buffers, length).items():
                tensors[f"{index}.{name}.0"] = tokens
        return Snapshot(tensors, (length,))

    def take_in(self, snapshot: Snapshot) -> Held:
        """A snapshot of one row, held here. Raises CheckpointError where it does not fit this model."""
        if len(snapshot.lengths) != 1:
            raise CheckpointError(f"the snapshot has {len(snapshot.lengths)} rows; a conversation has 1.")
        row = self.open()
        try:
            expected: set[str] = set()
            for index, store in enumerate(self.stores):
                expected |= {f"{index}.{name}" for name in store.load(row, snapshot, index)}
            odd = sorted(expected ^ snapshot.tensors.keys())
            if odd:
                raise CheckpointError(f"the snapshot's {odd[0]} has no place in this model; it is another model's.")
            return self.hold(row)
        finally:
            self.close(row)

    def pages_after(self, segments: Segments) -> Pages:
        """The pages of the segments' rows with room for the segments' tokens; asked by every layer of a pass."""
        if self._pass is None or self._pass[0] is not segments:
            rows, lengths = segments.rows or (), []
            for row, start, length in zip(rows, segments.start, segments.lengths, strict=True):
                self._make_room(row, start, start + length)
                lengths.append(start + length)
            buffers = [[self._buffers[page] for page in self._tables[row]] for row in rows]
            self._pass = segments, Pages(buffers, tuple(lengths), self.page)
        return self._pass[1]

    def _make_room(self, row: int, length: int, needed: int) -> None:
        """Pages for `needed` tokens, of which those after `length` are the row's alone to write."""
        table = self._tables[row]
        for place in range(length // self.page, len(table)):
            if self._holders.count(table[place]) > 1:
                table[place] = self._own_copy(table[place])
        while len(table) * self.page < needed:
            table.append(self._new_page())

    def _own_copy(self, page: int) -> int:
        own = self._new_page()
        self._buffers[own].copy_(self._buffers[page])
        self._free([page])
        return own

    def _new_page(self) -> int:
        page = self._holders.new()
        self._buffers[page] = torch.empty(self._page_elements, dtype=self._dtype, device=self._device)
        return page

    def _free(self, pages: Sequence[int]) -> None:
        self._pass = None
        for page in self._holders.let_go(pages):
            del self._buffers[page]


def _of_layer(states: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    prefix = f"{index}."
    return {name.removeprefix(prefix): state for name, state in states.items() if name.startswith(prefix)}


class PagedStore:
    """One layer's tensors in a `PagedMemory`: a slot per row for what is fixed, a place in each page for what grows."""

    def __init__(self, owner: PagedMemory, spec: MemorySpec, rows: int, device: torch.device) -> None:
        self.spec = spec
        self._owner = owner
        self._fixed = {
            t.name: torch.zeros(rows, *t.shape, dtype=DTYPES[t.dtype], device=device)
            for t in spec.tensors
            if not t.grows
        }
        self._growing = {t.name: (t.shape, owner.place(t)) for t in spec.tensors if t.grows}

    @property
    def lengths(self) -> list[int]:
        """Tokens each row has taken in."""
        return self._owner.lengths

    def tensors(self) -> dict[str, Tensor]:
        """All slots, by name."""
        return dict(self._fixed)

    @property
    def slot_bytes(self) -> int:
        """Of all slots."""
        return sum(held.nbytes for held in self._fixed.values())

    def take(self, name: str, segments: Segments) -> Tensor:
        return self._fixed[name][segments.row_index]

    def put(self, name: str, segments: Segments, value: Tensor) -> None:
        held = self._fixed[name]
        held[segments.row_index] = value.detach().to(held.dtype)

    def slots(self, name: str, segments: Segments) -> Slots:
        return Slots(self._fixed[name], segments.row_index)

    def append(self, name: str, segments: Segments, stream: Tensor) -> None:
        pages = self._owner.pages_after(segments)
        shape, at = self._growing[name]
        width, flat = math.prod(shape), stream.detach().reshape(len(stream), -1)
        for row, begin, start, length in zip(
            pages.buffers, segments.bounds, segments.start, segments.lengths, strict=False
        ):
            done = 0
            while done < length:
                place, offset = divmod(start + done, self._owner.page)
                count = min(length - done, self._owner.page - offset)
                first = at + offset * width
                row[place][first : first + count * width] = flat[begin + done : begin + done + count].reshape(-1)
                done += count

    def kept(self, name: str, segments: Segments) -> Kept:
        return Kept(self._owner.pages_after(segments), *self._growing[name])

    def advance(self, segments: Segments) -> None:
        """Counted by the last layer alone: all layers share one length per row."""
        if self is self._owner.stores[-1]:
            for row, length in zip(segments.rows or (), segments.lengths, strict=True):
                self._owner.lengths[row] += length

    def gathered(self, buffers: Sequence[Tensor], length: int) -> dict[str, Tensor]:
        """The first `length` tokens of every growing tensor, out of one row's pages: copies."""
        if not length or not self._growing:
            return {name: torch.empty(0, *shape) for name, (shape, _) in self._growing.items()}
        pages = Pages([buffers], (length,), self._owner.page)
        return {name: Kept(pages, shape, at).row(0).clone() for name, (shape, at) in self._growing.items()}

    def begin(self, row: int, states: dict[str, Tensor]) -> None:
        """The row's slot becomes `states`, or empty where there are none."""
        for name, held in self._fixed.items():
            held[row] = states[name] if states else 0

    def states(self, row: int) -> dict[str, Tensor]:
        """The row's slot: views."""
        return {name: held[row] for name, held in self._fixed.items()}

    def load(self, row: int, snapshot: Snapshot, index: int) -> list[str]:
        """Take a row of `snapshot`'s layer `index` in; the names it used. Raises CheckpointError where one is unfit."""
        (length,) = snapshot.lengths
        wanted = {name: (1, *held.shape[1:]) for name, held in self._fixed.items()}
        wanted |= {f"{name}.0": (length, *shape) for name, (shape, _) in self._growing.items()}
        for name, shape in wanted.items():
            found = snapshot.tensors.get(f"{index}.{name}")
            if found is None or tuple(found.shape) != shape:
                has = "missing" if found is None else tuple(found.shape)
                raise CheckpointError(
                    f"the snapshot's {index}.{name} is {has}, this model holds {shape}; it is another model's."
                )
        for name, held in self._fixed.items():
            held[row] = snapshot.tensors[f"{index}.{name}"][0].to(held.dtype)
        if length:
            segments = Segments((0, length), (row,), (0,))
            for name in self._growing:
                self.append(name, segments, snapshot.tensors[f"{index}.{name}.0"])
            self.advance(segments)
        return list(wanted)
