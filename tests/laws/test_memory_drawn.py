"""The memory laws whose cases are drawn at random: any partition of a text, and bytes at any length.

Over one of each mixer; the long form is over every option.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statewell.config.memory import PAGE
from tests.laws.mixers import (
    PLAIN,
    SPECS,
    WIDTH,
    assert_same_memory,
    feed,
    new_memory,
    noise,
    small_mixer,
    used_tensors,
)
from tests.tolerances import assert_close

pytestmark = pytest.mark.parametrize(
    "name", [name if name in PLAIN else pytest.param(name, marks=pytest.mark.slow) for name in SPECS]
)


@given(cuts=st.lists(st.integers(1, 95), max_size=4, unique=True))
@torch.no_grad()
def test_any_partition_into_segments_equals_the_whole(name, cuts):
    mixer, x = small_mixer(name), noise(2, 96, WIDTH)
    whole, parts = new_memory(mixer, 2), new_memory(mixer, 2)
    expected = feed(mixer, whole, x)
    bounds = [0, *sorted(cuts), 96]
    pieces = [feed(mixer, parts, x[:, a:b]) for a, b in pairwise(bounds)]
    assert_close(torch.cat(pieces, dim=1), expected, "memory")
    assert_same_memory(parts, whole)


@given(steps=st.lists(st.integers(1, 150), min_size=1, max_size=3), rows=st.integers(1, 3))
@pytest.mark.parametrize("capacity", [None, 451])
@torch.no_grad()
def test_measured_bytes_equal_planned_bytes(name, capacity, steps, rows):
    mixer = small_mixer(name)
    memory = new_memory(mixer, rows, torch.float32, capacity)
    spec = SPECS[name].memory("fp32", "fp32")
    for index, tokens in enumerate([0, *steps]):
        if tokens:
            feed(mixer, memory, noise(rows, tokens, WIDTH, seed=index))
        held = sum(tensor.nbytes for tensor in memory.tensors().values())
        assert memory.reserved() == held == spec.reserved(memory.lengths, PAGE, capacity)
        assert (
            memory.used() == spec.used(memory.lengths) == sum(tensor.nbytes for tensor in used_tensors(memory).values())
        )
    assert memory.lengths == [sum(steps)] * rows
