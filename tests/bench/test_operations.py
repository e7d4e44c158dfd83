"""What `bench ops` times: its inputs, its work, and that every peer computes the same."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from statewell.bench.footprint import extra_bytes, measurable
from statewell.bench.operations import BY_NAME, OPERATIONS, Shape
from statewell.bench.peers import open_peer
from statewell.bench.recurrence import relative_rms
from statewell.bench.suite_decode import MEMORIES, ONE_TOKEN
from statewell.bench.suite_ops import AGREE, forward_backward

SHAPE = Shape(T=20, H=2, dim=16)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_inputs_are_the_same_every_time_and_the_result_has_the_shape_that_is_said(operation):
    x, again = operation.draw(SHAPE), operation.draw(SHAPE)
    assert all(torch.equal(a, b) for a, b in zip(x, again, strict=True))
    assert operation.ours(*x).shape == x[operation.like].shape


# fla needs an extra of its own, which brings triton
FLA = pytest.mark.skipif(find_spec("fla") is None or find_spec("triton") is None, reason="the peers extra is missing")


@pytest.mark.parametrize("name", ["transformers", "torch", "reference", pytest.param("fla-naive", marks=FLA)])
def test_a_peer_answers_what_we_answer_forward_and_backward(name):
    peer = open_peer(name)
    assert peer.many
    for operation, run in peer.many.items():
        ours, theirs = (forward_backward(BY_NAME[operation], side, SHAPE)() for side in (BY_NAME[operation].ours, run))
        assert max(relative_rms(b, a) for a, b in zip(ours, theirs, strict=True)) < AGREE, operation


@pytest.mark.parametrize("peer", ["transformers", pytest.param("fla-naive", marks=FLA)])
def test_a_peers_step_goes_on_from_a_state_as_our_memory_does(peer):
    for name, step in open_peer(peer).steps.items():
        x = BY_NAME[name].draw(Shape(T=1, H=2, dim=16))
        memory, inputs = MEMORIES[name](x, 2, 16)
        state = memory.tensors()["state"].clone()
        o, new = step(*x, state=state)
        assert relative_rms(memory.mix(inputs, ONE_TOKEN), o) < AGREE, name
        assert isinstance(new, torch.Tensor)
        assert relative_rms(memory.tensors()["state"], new) < AGREE, name


def test_kda_is_seven_operations_for_every_cell_of_a_state():
    assert BY_NAME["kda"].work(SHAPE).amount == 7 * 16 * 16 * 20 * 2


@pytest.mark.skipif(not measurable(), reason="this system does not tell a process its highest resident size")
def test_extra_memory_is_that_of_the_fullest_moment_not_only_of_what_is_handed_back():
    shape = Shape(T=1024, H=4, dim=64)
    handed_back = 5 * 4 * shape.T * shape.width  # o, dq, dk, dv and dg, float32
    assert 1.3 * handed_back <= extra_bytes("kda", "statewell", shape) < 20 * handed_back
