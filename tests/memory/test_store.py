"""Where tensors live: pages, capacities, views and what a memory file can never become."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statewell.config.memory import MemorySpec, TensorSpec
from statewell.errors import CheckpointError
from statewell.memory.segments import Segments
from statewell.memory.store import RowStore

SPEC = MemorySpec(
    tensors=(
        TensorSpec(name="state", shape=(2, 3), dtype="fp32"),
        TensorSpec(name="k", shape=(5,), dtype="bf16", grows=True),
    )
)
CPU = torch.device("cpu")


@given(
    steps=st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 140)), min_size=1, max_size=3, unique_by=lambda s: s[0]),
        max_size=5,
    ),
    capacity=st.sampled_from([None, 1, 100, 1000]),
)
def test_every_token_is_kept_in_order_and_pages_are_whole(steps, capacity):
    store, expected = RowStore(SPEC, 3, CPU, capacity), [torch.empty(0, 5) for _ in range(3)]
    counter = 0
    for step in steps:
        bounds, rows = [0], tuple(row for row, _ in step)
        for _, length in step:
            bounds.append(bounds[-1] + length)
        stream = torch.arange(counter, counter + bounds[-1]).remainder(256).float()[:, None].expand(-1, 5)
        counter += bounds[-1]
        segments = Segments(tuple(bounds), rows, tuple(store.lengths[row] for row in rows))
        store.append("k", segments, stream)
        store.advance(segments)
        for row, begin, length in zip(rows, bounds, segments.lengths, strict=False):
            expected[row] = torch.cat([expected[row], stream[begin : begin + length]])
    for row in range(3):
        assert torch.equal(store.held("k", row).float(), expected[row])
        page = capacity or 128
        pages = -(-len(expected[row]) // page)
        assert len(store.tensors()[f"k.{row}"]) == page * (pages if capacity is None else max(1, pages))


def test_rows_are_taken_and_put_by_their_own_index():
    store = RowStore(SPEC, 3, CPU)
    one = Segments.equal(2, 1, rows=(2, 0))
    store.put("state", one, torch.stack([torch.full((2, 3), 2.0), torch.full((2, 3), 7.0)]))
    assert store.tensors()["state"][:, 0, 0].tolist() == [7, 0, 2]
    assert store.take("state", one)[:, 0, 0].tolist() == [2, 7]


def test_what_is_kept_has_no_graph():
    store = RowStore(SPEC, 1, CPU)
    whole = Segments.equal(1, 1, rows=(0,))
    value = torch.ones(1, 2, 3, requires_grad=True) * 2
    store.put("state", whole, value)
    store.append("k", whole, torch.ones(1, 5, requires_grad=True) * 3)
    assert not any(tensor.requires_grad for tensor in store.tensors().values())


def test_a_snapshot_of_other_shapes_is_refused():
    store = RowStore(SPEC, 1, CPU)
    with pytest.raises(CheckpointError, match="does not fit"):
        store.load({"state": torch.zeros(1, 2, 4), "k.0": torch.zeros(0, 5)}, [0])
    with pytest.raises(CheckpointError, match="does not fit"):
        store.load({"state": torch.zeros(1, 2, 3), "k.0": torch.zeros(3, 5)}, [4])


def test_seeded_noise_fills_to_the_planned_bytes_and_is_the_same_again():
    stores = [RowStore(SPEC, 2, CPU) for _ in range(2)]
    for store in stores:
        store.fill_random([300, 5], torch.Generator().manual_seed(3))
        assert sum(tensor.nbytes for tensor in store.tensors().values()) == SPEC.reserved([300, 5])
    first, second = (store.used_tensors() for store in stores)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["k.0"].float().std() > 0.5


def test_slots_are_the_kept_tensor_itself_and_the_rows_the_segments_name():
    store = RowStore(SPEC, 3, CPU)
    whole = store.slots("state", Segments.equal(3, 1, rows=(0, 1, 2)))
    assert whole.held is store.tensors()["state"]
    assert whole.rows is None
    some = store.slots("state", Segments.equal(2, 1, rows=(2, 0)))
    assert some.held is whole.held
    assert some.rows.tolist() == [2, 0]


def test_a_value_that_a_backward_may_need_is_not_moved_by_later_steps():
    store = RowStore(SPEC, 1, CPU)
    one = Segments.equal(1, 1, rows=(0,))
    value = torch.ones(1, 2, 3, requires_grad=True) * 2
    store.put("state", one, value)
    store.slots("state", one).held.zero_()
    assert torch.equal(value, torch.full((1, 2, 3), 2.0))
