"""The laws every memory keeps, run over every registered mixer and its options; those that draw their cases are in
`test_memory_drawn.py`.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from statewell.errors import CheckpointError, ShapeError, StatewellError
from statewell.memory.segments import Segments
from statewell.memory.store import NothingKept
from tests.laws.mixers import (
    SPECS,
    WIDTH,
    assert_same_memory,
    feed,
    memory_inputs,
    new_memory,
    noise,
    one_token,
    small_mixer,
    used_tensors,
)
from tests.tolerances import assert_close

pytestmark = pytest.mark.parametrize("name", SPECS)


def assert_identical(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for tensor in actual:
        assert torch.equal(actual[tensor], expected[tensor]), tensor


@torch.no_grad()
def test_mix_equals_forget_write_read_token_by_token(name):
    spec, rows, tokens = SPECS[name], 2, 21
    mixer, x = small_mixer(name), memory_inputs(spec, rows * tokens)
    mixed, stepped = new_memory(mixer, rows), new_memory(mixer, rows)
    outputs = mixed.mix(x, Segments.equal(rows, tokens, (0, 1))).unflatten(1, (rows, tokens))[0]
    for t in range(tokens):
        token = one_token(x, t, rows, tokens)
        stepped.forget(token)
        stepped.write(token)
        assert_close(stepped.read(token), outputs[:, t], "memory")
    # tails belong to the convolutions before the memory's inputs: neither way touches them
    assert_same_memory(stepped, mixed)


@torch.no_grad()
def test_a_mix_of_single_tokens_equals_forget_write_read(name):
    spec, rows = SPECS[name], 3
    mixer, x = small_mixer(name), memory_inputs(spec, rows * 5)
    mixed, stepped = new_memory(mixer, rows), new_memory(mixer, rows)
    for t in range(5):
        token = one_token(x, t, rows, 5)
        stepped.forget(token)
        stepped.write(token)
        packed = type(x)(**{key: value if key == "up" else value[None] for key, value in token._asdict().items()})
        output = mixed.mix(packed, Segments.equal(rows, 1, (0, 1, 2), tuple(mixed.lengths)))
        assert_close(output[0], stepped.read(token), "memory")
    assert_same_memory(mixed, stepped)


@torch.no_grad()
def test_documents_packed_together_equal_each_alone(name):
    mixer, lengths = small_mixer(name), (1, 2, 3, 1, 65, 7)
    x, bounds = noise(1, sum(lengths), WIDTH), [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    packed = mixer(x, mixer.new_memory(NothingKept()), Segments(tuple(bounds), None, (0,) * len(lengths)))
    for begin, end in pairwise(bounds):
        alone = mixer(x[:, begin:end], mixer.new_memory(NothingKept()), Segments.equal(1, end - begin))
        assert_close(packed[:, begin:end], alone, "memory")


@torch.no_grad()
def test_ragged_rows_in_one_stream_equal_each_row_alone(name):
    """A mixed step: one row prefilling, one decoding, one continuing, in an order that is not the rows'."""
    mixer = small_mixer(name)
    together, alone = new_memory(mixer, 3), [new_memory(mixer, 1) for _ in range(3)]
    for rows, lengths, seed in (
        ((2, 0, 1), (9, 4, 70), 1),
        ((1, 2), (1, 5), 2),
        ((0, 1, 2), (1, 1, 1), 3),
        ((2,), (6,), 4),
    ):
        x, bounds = noise(1, sum(lengths), WIDTH, seed=seed), [0]
        for length in lengths:
            bounds.append(bounds[-1] + length)
        start = tuple(together.lengths[row] for row in rows)
        y = mixer(x, together, Segments(tuple(bounds), rows, start))
        for row, begin, end in zip(rows, bounds, bounds[1:], strict=False):
            assert_close(y[:, begin:end], feed(mixer, alone[row], x[:, begin:end]), "memory")
    for row in range(3):
        for key, value in used_tensors(alone[row]).items():
            tensor, _, index = key.partition(".")
            mine = used_tensors(together)[f"{tensor}.{row}"] if index else used_tensors(together)[tensor][row : row + 1]
            assert_close(mine, value, "memory")


@torch.no_grad()
def test_permuting_rows_permutes_results_and_rows_do_not_see_each_other(name):
    mixer, x, order = small_mixer(name), noise(3, 40, WIDTH), [2, 0, 1]
    y = feed(mixer, new_memory(mixer, 3), x)
    assert_close(feed(mixer, new_memory(mixer, 3), x[order]), y[order], "memory")
    changed = x.clone()
    changed[1] = noise(40, WIDTH, seed=9)
    assert_close(feed(mixer, new_memory(mixer, 3), changed)[[0, 2]], y[[0, 2]], "memory")


@pytest.mark.parametrize("capacity", [None, 400])
@torch.no_grad()
def test_restoring_a_snapshot_is_exact_and_goes_on_identically(name, capacity):
    mixer = small_mixer(name)
    memory = new_memory(mixer, 2, capacity=capacity)
    feed(mixer, memory, noise(2, 130, WIDTH))
    kept, lengths, reserved = memory.snapshot(), list(memory.lengths), memory.reserved()
    expected = feed(mixer, memory, noise(2, 5, WIDTH, seed=5))
    after = memory.snapshot()
    memory.restore(kept)
    assert_identical(used_tensors(memory), kept.tensors)
    assert (memory.lengths, memory.reserved()) == (lengths, reserved)
    assert torch.equal(feed(mixer, memory, noise(2, 5, WIDTH, seed=5)), expected)
    assert_identical(used_tensors(memory), after.tensors)
    fresh = new_memory(mixer, 2, capacity=capacity)
    fresh.restore(kept)
    assert torch.equal(feed(mixer, fresh, noise(2, 5, WIDTH, seed=5)), expected)


@torch.no_grad()
def test_a_fork_never_moves_its_parent_nor_the_parent_its_fork(name):
    mixer = small_mixer(name)
    parent = new_memory(mixer, 2)
    feed(mixer, parent, noise(2, 9, WIDTH))
    before, child = parent.snapshot(), parent.fork()
    assert_identical(used_tensors(child), before.tensors)
    feed(mixer, child, noise(2, 4, WIDTH, seed=4))
    feed(mixer, child, noise(2, 1, WIDTH, seed=5))
    assert_identical(used_tensors(parent), before.tensors)
    assert parent.lengths == [9, 9]
    in_child = child.snapshot()
    feed(mixer, parent, noise(2, 3, WIDTH, seed=6))
    assert_identical(used_tensors(child), in_child.tensors)


@torch.no_grad()
def test_a_cache_outgrows_its_capacity_by_pages_of_that_size(name):
    mixer = small_mixer(name)
    memory = new_memory(mixer, 1, capacity=10)
    feed(mixer, memory, noise(1, 25, WIDTH))
    assert memory.reserved() == SPECS[name].memory("fp64", "fp64").reserved([30], page=10)


def test_a_training_pass_keeps_nothing_and_says_so(name):
    memory = small_mixer(name).new_memory(NothingKept())
    with pytest.raises(StatewellError, match="new_memory"):
        memory.used()


def test_a_foreign_snapshot_is_refused_and_changes_nothing(name):
    mixer = small_mixer(name)
    memory, other = new_memory(mixer, 2), new_memory(mixer, 3)
    feed(mixer, memory, noise(2, 4, WIDTH))
    before = memory.snapshot()
    with pytest.raises(CheckpointError, match="3 rows"):
        memory.restore(other.snapshot())
    assert_identical(used_tensors(memory), before.tensors)


@torch.no_grad()
def test_a_float64_model_keeps_float64_and_a_float32_one_float32(name):
    mixer = small_mixer(name)
    memory = new_memory(mixer, 1)
    feed(mixer, memory, noise(1, 3, WIDTH))
    assert {tensor.dtype for tensor in memory.tensors().values()} == {torch.float64}
    memory = new_memory(mixer.float(), 1, torch.float32)
    feed(mixer, memory, noise(1, 3, WIDTH).float())
    assert {tensor.dtype for tensor in memory.tensors().values()} == {torch.float32}


@pytest.mark.parametrize(
    ("bounds", "rows", "start"),
    [
        ((0,), (), ()),
        ((1, 2), (0,), (0,)),
        ((0, 2, 2), (0, 1), (0, 0)),
        ((0, 2, 4), (1, 1), (0, 0)),
        ((0, 2), (0, 1), (0,)),
    ],
)
def test_segments_that_cannot_be_are_refused(name, bounds, rows, start):
    with pytest.raises(ShapeError):
        Segments(bounds, rows, start)
