"""The chunkwise forms against the recurrence: results, every gradient, memory, and the parts they are built from."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from statewell.kernels.reference import segments, triangle
from statewell.kernels.reference.segments import C, lay_out
from tests.kernels.inputs import (
    DELTA,
    GATED_DELTA,
    GOLDEN_CASES,
    KDA,
    OPERATIONS,
    Shape,
    check_golden,
    normal,
    with_gradients,
)
from tests.kernels.live_bytes import live_bytes
from tests.tolerances import assert_close

every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=str)
SHAPES = [
    Shape(T=1, H=2, HV=4, K=5, V=7),
    Shape(B=2, T=63, H=2, HV=2, K=16, V=8),
    Shape(T=64, HV=3, K=8, V=24),
    Shape(B=3, T=65, K=16, V=16),
    Shape(T=130, H=2, HV=4, K=32, V=16),
    Shape(T=1000, K=16, V=8),
    Shape(T=200, H=1, HV=2, K=12, V=9, cu=(0, 1, 3, 3, 6, 70, 71, 135, 200)),
]


@pytest.mark.parametrize(("name", "case"), GOLDEN_CASES)
def test_the_chunk_form_gives_the_golden_outputs_states_and_gradients(name, case):
    check_golden(name, case, "chunk", torch.float64, 1e-9)


@pytest.mark.parametrize(("name", "case"), GOLDEN_CASES)
def test_the_chunk_form_in_float32_stays_near_the_golden_results(name, case):
    check_golden(name, case, "chunk", torch.float32, 2e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@every_operation
def test_chunks_equal_the_recurrence_with_every_gradient_in_float64(operation, shape):
    arguments = operation.inputs(shape), operation.states(shape), shape.cu_seqlens()
    expected = with_gradients(operation, "recurrent", *arguments)
    actual = with_gradients(operation, "chunk", *arguments)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, "operation")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@every_operation
def test_chunks_in_float32_are_near_the_float64_recurrence(operation, shape):
    inputs, states = (
        [x.float() for x in part] for part in (operation.inputs(shape, beta=1.0), operation.states(shape))
    )
    wide = [[x.double() for x in part] for part in (inputs, states)]
    expected = with_gradients(operation, "recurrent", *wide, shape.cu_seqlens())
    actual = with_gradients(operation, "chunk", inputs, states, shape.cu_seqlens())
    results = 1 + len(states)
    for a, e in zip(actual[:results], expected[:results], strict=True):
        assert_close(a, e, "operation")
    for a, e in zip(actual[results:], expected[results:], strict=True):
        assert_close(a, e, "gradient")


@every_operation
def test_the_chunk_form_passes_gradcheck(operation):
    shape = Shape(T=70, H=1, HV=2, K=2, V=3, cu=(0, 2, 2, 70))
    inputs, states = operation.inputs(shape), operation.states(shape)
    leaves = [x.requires_grad_() for x in (*inputs, *states)]

    def run(*x):
        return operation.run(operation.chunk, x[: len(inputs)], x[len(inputs) :], shape.cu_seqlens())

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


@pytest.mark.slow
@every_operation
def test_the_chunk_form_passes_gradcheck_entry_by_entry(operation):
    shape = Shape(T=66, K=2, V=2)
    leaves = [x.requires_grad_() for x in operation.inputs(shape)]
    assert torch.autograd.gradcheck(lambda *x: operation.run(operation.chunk, x), leaves)


def test_only_the_gradients_asked_for_are_given():
    inputs = KDA.inputs(Shape(T=70))
    inputs[2].requires_grad_()
    o, _ = KDA.run(KDA.chunk, inputs)
    o.sum().backward()
    assert inputs[2].grad is not None
    assert all(x.grad is None for x in (*inputs[:2], *inputs[3:]))


@pytest.mark.parametrize("operation", [DELTA, GATED_DELTA, KDA], ids=str)
def test_nearly_parallel_keys_with_full_writes_keep_their_accuracy(operation):
    shape = Shape(T=128, K=16, V=16)
    inputs = operation.inputs(shape, decay=1e-3)
    direction = F.normalize(normal(inputs[1][:, :1])[0], dim=-1)
    inputs[1] = F.normalize(direction + 1e-2 * inputs[1], dim=-1)
    inputs[-1] = 1 - 1e-3 * torch.rand(inputs[-1].shape, generator=torch.Generator().manual_seed(3)).double()
    inputs = [x.float() for x in inputs]
    expected = operation.run(operation.recurrent, [x.double() for x in inputs])
    for a, e in zip(operation.run(operation.chunk, inputs), expected, strict=True):
        assert_close(a, e, "gradient")  # the recurrence itself, in float32, is at 1e-6 here


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_operation
def test_how_chunks_are_grouped_changes_no_bit(operation, dtype, monkeypatch):
    shape = Shape(T=400, H=1, HV=3, K=16, V=16, cu=(0, 130, 131, 330, 400))
    inputs, states = ([x.to(dtype) for x in part] for part in (operation.inputs(shape), operation.states(shape)))
    whole = with_gradients(operation, "chunk", inputs, states, shape.cu_seqlens())
    for numbers in (1, 5 * 3 * 64 * 64):
        monkeypatch.setattr(segments, "GROUP_NUMBERS", numbers)
        cut = with_gradients(operation, "chunk", inputs, states, shape.cu_seqlens())
        assert all(map(torch.equal, cut, whole))


@pytest.mark.parametrize(
    "shape",
    [
        Shape(T=128, K=16, V=16),
        Shape(T=2048, H=4, HV=4, K=16, V=16),
        Shape(T=2048, H=2, HV=4, K=32, V=32, cu=tuple(range(0, 2049, 256))),
        Shape(T=1024, H=2, HV=2, K=128, V=128),
    ],
    ids=str,
)
@every_operation
def test_forward_and_backward_take_at_most_twelve_times_the_inputs(operation, shape):
    inputs = [x.float().requires_grad_() for x in operation.inputs(shape)]
    given_bytes = sum(x.nbytes for x in inputs)
    with live_bytes(inputs) as counter:
        o, *_ = operation.run(operation.chunk, inputs, cu_seqlens=shape.cu_seqlens())
        o.sum().backward()
    assert counter.peak > o.nbytes
    assert counter.peak <= 12 * given_bytes, f"{counter.peak / given_bytes:.1f} times the inputs"


def test_without_gradients_memory_does_not_grow_with_what_is_recomputed():
    peaks = []
    for T in (4096, 8192):
        inputs = [x.float() for x in KDA.inputs(Shape(T=T, H=2, HV=2, K=32, V=32))]
        with torch.no_grad(), live_bytes(inputs) as counter:
            o, _ = KDA.run(KDA.chunk, inputs)
        peaks.append(counter.peak - o.nbytes)
    assert peaks[1] <= peaks[0] + 2 * 8192 * 8  # the token index grows, nothing else


@given(st.lists(st.integers(0, 200), min_size=1, max_size=6))
def test_every_token_lies_at_one_place_and_states_that_go_on_are_a_prefix(lengths):
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    T = int(bounds[-1])
    layout = lay_out(1, T, 2, bounds, torch.device("cpu"))
    present = layout.tokens[layout.tokens < T]
    assert sorted(present.tolist()) == list(range(T))
    assert layout.widths == sorted(layout.widths, reverse=True)
    assert len(layout.padded) == sum(-(-length // C) for length in lengths)
    seen = []
    for group in layout.groups(8, True):
        rows = [row for piece in group.pieces for row in range(piece.rows.start, piece.rows.stop)]
        assert rows == list(range(2 * (group.stop - group.start)))
        seen += range(group.start, group.stop)
    assert seen == list(range(len(layout.padded)))


def test_the_inverse_of_unit_triangles_is_their_inverse():
    A = 0.5 * torch.randn(5, C, C, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).tril(-1)
    products = triangle.new_products(A, 5)
    triangle.correcting(products).copy_(A)
    triangle.asking(products).fill_(7)
    triangle.invert_(products)
    eye = torch.eye(C, dtype=torch.float64)
    expected = torch.linalg.solve_triangular(eye - A, eye.expand_as(A), upper=False, unitriangular=True)
    assert_close(triangle.correcting(products), expected, "operation")
    assert (triangle.asking(products) == 7).all()
