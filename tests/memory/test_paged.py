"""Many conversations in one paged memory: each as if it were alone, to the bit where the passes are the same."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

import statewell as sw
from statewell.architectures import ARCHITECTURES
from statewell.errors import CheckpointError, LimitError, StatewellError
from statewell.memory.paged import Held, PagedMemory
from statewell.memory.segments import Segments
from statewell.models import LanguageModel
from tests.tolerances import assert_close

every_architecture = pytest.mark.parametrize("arch", ARCHITECTURES)


def ids(count: int, seed: int) -> list[int]:
    return torch.randint(256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def advance(model: LanguageModel, memory: PagedMemory, texts: dict[int, list[int]]) -> dict[int, Tensor]:
    """One pass: each row takes its tokens in; the logits after its last."""
    rows, lengths = tuple(texts), [len(text) for text in texts.values()]
    bounds = tuple(sum(lengths[:n]) for n in range(len(lengths) + 1))
    segments = Segments(bounds, rows, tuple(memory.lengths[row] for row in rows))
    with torch.inference_mode():
        packed = torch.tensor([[token for text in texts.values() for token in text]])
        hidden = model.hidden(packed, memory.layers, segments)
        logits = model.logits(hidden[0, [end - 1 for end in bounds[1:]]])
    return dict(zip(rows, logits, strict=True))


def alone(model: LanguageModel, pieces: list[list[int]]) -> Tensor:
    """The logits after the same pieces in a memory of one row."""
    memory, logits = model.new_memory(rows=1), torch.empty(0)
    with torch.inference_mode():
        for piece in pieces:
            logits = model(torch.tensor([piece]), memory)[0, -1]
    return logits


@every_architecture
def test_random_joins_leaves_and_forks_equal_each_conversation_alone_in_float64(arch: str):
    model = sw.build(f"{arch}:nano", seed=1).double()
    memory, chance = model.new_paged_memory(rows=4), random.Random(arch)
    told: dict[int, list[list[int]]] = {}
    aside: list[tuple[Held, list[list[int]]]] = []
    for turn in range(24):
        if len(told) < 4 and chance.random() < 0.6:
            held, pieces = chance.choice([*aside, (None, [])])
            told[memory.open(held)] = list(pieces)
        if told and chance.random() < 0.3:
            row = chance.choice(list(told))
            aside.append((memory.hold(row), list(told[row])))
        if told and chance.random() < 0.2:
            row = chance.choice(list(told))
            memory.close(row)
            del told[row]
        if len(aside) > 3:
            memory.drop(aside.pop(0)[0])
        if told:
            single = chance.random() < 0.6
            chosen = chance.sample(list(told), chance.randint(1, len(told)))
            texts = {row: ids(1 if single else chance.choice([2, 7, 64, 130]), turn * 10 + row) for row in chosen}
            for row, logits in advance(model, memory, texts).items():
                told[row].append(texts[row])
                assert_close(logits, alone(model, told[row]), "model")


@every_architecture
def test_bytes_are_the_tensors_and_return_to_the_start(arch: str):
    model = sw.build(f"{arch}:nano", seed=1)
    memory = model.new_paged_memory(rows=3)
    spec = model.config.memory(cache_dtype="fp32")
    empty = memory.bytes()
    assert empty.slots == 3 * spec.fixed_bytes
    assert empty.pages == empty.held == 0
    rows = [memory.open(), memory.open()]
    advance(model, memory, {rows[0]: ids(130, 1), rows[1]: ids(5, 2)})
    assert memory.bytes().pages == 3 * memory.page_bytes == 3 * 128 * spec.bytes_per_token
    held = memory.hold(rows[0])
    assert memory.bytes().held == spec.fixed_bytes
    assert memory.bytes().pages == 3 * memory.page_bytes  # shared, not copied
    twin = memory.open(held)
    advance(model, memory, {twin: ids(1, 3)})
    assert memory.bytes().pages == 4 * memory.page_bytes  # the page it writes into, copied; the full one, shared
    for row in (*rows, twin):
        memory.close(row)
    assert memory.bytes().pages == 2 * memory.page_bytes
    memory.drop(held)
    assert memory.bytes() == empty
    with pytest.raises(StatewellError, match="let go before"):
        memory.drop(held)


@every_architecture
def test_a_snapshot_is_the_one_of_a_single_row_and_comes_back(arch: str):
    model = sw.build(f"{arch}:nano", seed=1)
    memory, text = model.new_paged_memory(rows=2), ids(140, 4)
    row = memory.open()
    advance(model, memory, {row: text})
    snapshot = memory.snapshot(memory.hold(row))
    single = model.new_memory(rows=1)
    with torch.inference_mode():
        model(torch.tensor([text]), single)
    expected = single.snapshot()
    assert snapshot.lengths == expected.lengths
    assert snapshot.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(tensor, snapshot.tensors[name]) for name, tensor in expected.tensors.items())
    again = memory.open(memory.take_in(expected))
    left, right = advance(model, memory, {row: ids(3, 5)}), advance(model, memory, {again: ids(3, 5)})
    assert torch.equal(left[row], right[again])


def test_an_empty_conversation_can_be_kept_too():
    model = sw.build("kimi_k3:nano", seed=1)
    memory = model.new_paged_memory(rows=1)
    row = memory.open()
    snapshot = memory.snapshot(memory.hold(row))
    memory.close(row)
    assert memory.take_in(snapshot).length == 0
    assert snapshot.tensors.keys() == model.new_memory(rows=1).snapshot().tensors.keys()


def test_another_models_snapshot_is_refused_and_leaves_nothing_behind():
    memory = sw.build("kimi_k3:nano", seed=1).new_paged_memory(rows=1)
    before = memory.bytes()
    foreign = sw.build("gpt2:nano", seed=1).new_memory(rows=1).snapshot()
    with pytest.raises(CheckpointError, match="another model's"):
        memory.take_in(foreign)
    assert memory.bytes() == before
    assert memory.rows_in_use == 0


def test_more_conversations_than_rows_are_refused():
    memory = sw.build("gpt2:nano", seed=1).new_paged_memory(rows=1)
    memory.open()
    with pytest.raises(LimitError, match="all 1 rows are in use"):
        memory.open()
