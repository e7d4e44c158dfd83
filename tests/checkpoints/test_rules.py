"""Rules run both ways, and the proof of coverage around them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from statewell.checkpoints.coverage import resolve, writing_rules
from statewell.checkpoints.rules import (
    Dequantised,
    Either,
    Ignore,
    Padded,
    Rename,
    Repeat,
    Split,
    Stack,
    Transposed,
    Unsqueezed,
    Vector,
)
from statewell.errors import CheckpointError
from statewell.kernels import ops

RULES = {
    "rename": (Rename("a", "x"), [(3, 4)]),
    "transpose": (Rename("a", "x", Transposed()), [(3, 4)]),
    "unsqueeze": (Rename("a", "x", Unsqueezed(1)), [(3, 4)]),
    "vector": (Rename("a", "x", Vector(((1, 1, 5, 1), (5,)), 5)), [(5,)]),
    "vector_padded": (Rename("a", "x", Vector(((8,), (5,)), 5)), [(5,)]),
    "pad_rows": (Rename("a", "x", Padded(0, 3, 8)), [(3, 4)]),
    "pad_columns": (Rename("a", "x", Padded(1, 4, 6)), [(3, 4)]),
    "split": (Split("a", ("x", "y"), (2, 3)), [(2, 4), (3, 4)]),
    "split_by_head": (Split("a", ("x", "y", "z"), (2, 1, 3), groups=2), [(4, 4), (2, 4), (6, 4)]),
    "stack": (Stack("a.{}.w", 3, "x"), [(3, 2, 4)]),
}


def whole(pieces) -> Tensor:
    return pieces if isinstance(pieces, Tensor) else torch.stack(list(pieces))


@pytest.mark.parametrize("name", RULES)
def test_what_a_rule_writes_it_reads_back_and_has_the_shape_it_says(name):
    rule, shapes = RULES[name]
    ours = [torch.randn(shape) for shape in shapes]
    stored = list(rule.write(ours))
    assert len(stored) == len(rule.sources)
    for tensor, accepted in zip(stored, rule.stored_shapes(shapes), strict=True):
        assert tuple(tensor.shape) == accepted[0]
    read = [whole(pieces) for pieces in rule.read(stored)]
    assert len(read) == len(rule.targets) == len(ours)
    assert all(torch.equal(one, other) for one, other in zip(read, ours, strict=True))


@pytest.mark.parametrize("name", ["rename", "transpose", "unsqueeze", "vector", "pad_rows", "split"])
def test_reading_makes_views(name):
    rule, shapes = RULES[name]
    stored = [tensor.contiguous() for tensor in rule.write([torch.randn(shape) for shape in shapes])]
    for pieces in rule.read(stored):
        assert whole(pieces).untyped_storage().data_ptr() == stored[0].untyped_storage().data_ptr()


def test_packed_experts_are_read_exactly_in_bf16():
    rule = Dequantised("e.{}.w1", 2, "x")
    weight = ops.mxfp4_dequantise(*ops.mxfp4_quantise(torch.randn(2, 6, 64)))
    stored = list(rule.write([weight]))
    assert [tuple(tensor.shape) for tensor in stored] == [shapes[0] for shapes in rule.stored_shapes([(2, 6, 64)])]
    assert rule.sources[:2] == ("e.0.w1.weight_packed", "e.1.w1.weight_packed")
    read = whole(rule.read(stored)[0])
    assert read.dtype == torch.bfloat16
    assert torch.equal(read.float(), weight)


PLAIN = Stack("e.{}.w", 2, "x")
PACKED = (Stack("e.{}.p", 2, "x_packed", packed=True), Stack("e.{}.s", 2, "x_scale", packed=True))
ENTRIES = (Rename("a", "A"), Either(((PLAIN,), PACKED)), Ignore(r"b\d+", "a buffer"), Repeat("again", "a"))


def test_alternatives_are_chosen_by_what_both_sides_have():
    plain = resolve(ENTRIES, ["a", "e.0.w", "e.1.w", "b1"], ["A", "x"])
    assert plain.rules == (ENTRIES[0], PLAIN)
    assert plain.ignored == {"b1": "a buffer"}
    packed = resolve(ENTRIES, ["a", "e.0.p", "e.1.p", "e.0.s", "e.1.s", "again"], ["A", "x_packed", "x_scale"])
    assert packed.rules == (ENTRIES[0], *PACKED)
    assert packed.repeats == (ENTRIES[3],)
    assert writing_rules(ENTRIES, ["A", "x_packed", "x_scale"]) == (ENTRIES[0], *PACKED)


@pytest.mark.parametrize(
    ("names", "targets", "words"),
    [
        (["a", "e.0.w"], ["A", "x"], "1 of the model's tensors not in the file, first: e.1.w"),
        (["e.0.w", "e.1.w"], ["A", "x"], "1 of the model's tensors not in the file, first: a"),
        (["a", "e.0.w", "e.1.w", "b1x", "c"], ["A", "x"], "2 of the file's tensors not used, first: b1x"),
        (["a", "e.0.w", "e.1.w"], ["A", "x", "y"], "1 tensors are not filled, 0 are not the model's, first: y"),
        (["a", "e.0.w", "e.1.w"], ["x"], "0 tensors are not filled, 1 are not the model's, first: A"),
    ],
)
def test_nothing_is_left_over_on_either_side(names, targets, words):
    with pytest.raises(CheckpointError) as caught:
        resolve(ENTRIES, names, targets)
    assert words in str(caught.value)


def test_two_rules_for_one_tensor_are_a_mistake():
    with pytest.raises(CheckpointError, match="first: A"):
        resolve((Rename("a", "A"), Rename("b", "A")), ["a", "b"], ["A"])


def test_what_is_elsewhere_is_ignored_with_its_reason_and_may_be_missing():
    def elsewhere(target):
        return "on disk" if target.startswith("x") else None

    coverage = resolve(ENTRIES, ["a", "e.0.p", "e.0.s", "e.1.s"], ["A"], elsewhere)
    assert coverage.ignored == dict.fromkeys(["e.0.p", "e.0.s", "e.1.s"], "on disk")


@given(st.sets(st.sampled_from(["a", "e.0.w", "e.1.w", "e.0.p", "e.1.p", "e.0.s", "e.1.s", "b1", "again", "zz"])))
def test_any_set_of_names_is_covered_whole_or_refused(names):
    try:
        coverage = resolve(ENTRIES, names, ["A", "x"])
    except CheckpointError:
        return
    used = {source for rule in coverage.rules for source in rule.sources}
    assert used | coverage.ignored.keys() == names
    assert not used & coverage.ignored.keys()
