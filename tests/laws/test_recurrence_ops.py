"""Laws of the recurrent operations, each form by itself: causal bit for bit, any cut gives the whole, strong decay."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.inputs import FORMS, GATED_DELTA, KDA, LINEAR, OPERATIONS, Shape, normal, with_gradients
from tests.tolerances import assert_close

every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=str)
every_form = pytest.mark.parametrize("form", FORMS)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
gated = pytest.mark.parametrize("operation", [GATED_DELTA, KDA], ids=str)


def tensors(operation, shape, dtype, seed=0):
    inputs, states = operation.inputs(shape, seed), operation.states(shape)
    return [x.to(dtype) for x in inputs], [x.to(dtype) for x in states]


def of_a_prefix(operation, form, inputs, states, upto, cu=None):
    """Outputs of the first tokens, and the gradients of a loss on those outputs alone."""
    leaves = [x.clone().requires_grad_() for x in (*inputs, *states)]
    results = operation.run(getattr(operation, form), leaves[: len(inputs)], leaves[len(inputs) :], cu)
    o = results[0][:, :upto]
    gradients = torch.autograd.grad((o * normal(o)[0]).sum(), leaves)
    late = [g[:, upto:] for g in gradients[: len(inputs)]]
    early = [g[:, :upto] for g in gradients[: len(inputs)]]
    return [o.detach(), *early, *gradients[len(inputs) :]], late


@both_dtypes
@every_form
@pytest.mark.parametrize(("T", "upto"), [(2, 1), (64, 17), (65, 64), (128, 64), (129, 65), (150, 100)])
@every_operation
def test_later_values_change_no_bit_of_earlier_outputs_and_gradients(operation, T, upto, form, dtype):
    shape = Shape(B=2, T=T, H=2, HV=2, K=16, V=8)
    inputs, states = tensors(operation, shape, dtype)
    other, _ = tensors(operation, shape, dtype, seed=5)
    changed = [torch.cat([x[:, :upto], y[:, upto:]], 1) for x, y in zip(inputs, other, strict=True)]
    before, late = of_a_prefix(operation, form, inputs, states, upto)
    after, _ = of_a_prefix(operation, form, changed, states, upto)
    assert all(map(torch.equal, before, after))
    assert not any(x.any() for x in late)


@both_dtypes
@every_form
@pytest.mark.parametrize(("T", "more"), [(1, 1), (17, 47), (63, 1), (64, 1), (64, 130), (100, 100), (129, 300)])
@every_operation
def test_appended_tokens_change_no_bit_of_earlier_outputs_and_gradients(operation, T, more, form, dtype):
    inputs, states = tensors(operation, Shape(B=1, T=T + more, H=1, HV=3, K=16, V=8), dtype)
    short, _ = of_a_prefix(operation, form, [x[:, :T] for x in inputs], states, T)
    long, _ = of_a_prefix(operation, form, inputs, states, T)
    assert all(map(torch.equal, short, long))


@every_form
@pytest.mark.parametrize(("K", "V"), [(5, 7), (8, 8), (24, 40), (128, 64)])
@every_operation
def test_a_segment_gives_the_same_bits_alone_and_among_others(operation, K, V, form):
    shape = Shape(T=231, H=1, HV=2, K=K, V=V, cu=(0, 70, 71, 74, 204, 231))
    inputs, states = tensors(operation, shape, torch.float32)
    packed = operation.run(getattr(operation, form), inputs, states, shape.cu_seqlens())
    for n, (start, stop) in enumerate(zip(shape.cu, shape.cu[1:], strict=False)):
        o, *final = operation.run(
            getattr(operation, form), [x[:, start:stop] for x in inputs], [s[n : n + 1] for s in states]
        )
        assert torch.equal(o, packed[0][:, start:stop])
        assert all(torch.equal(a, b[n : n + 1]) for a, b in zip(final, packed[1:], strict=True))


@every_form
@given(lengths=st.lists(st.integers(0, 90), min_size=1, max_size=4).filter(any), seed=st.integers(0, 3))
@settings(max_examples=12)
@every_operation
def test_any_cut_with_carried_state_gives_the_whole(operation, form, lengths, seed):
    shape = Shape(T=sum(lengths), H=1, HV=2)
    inputs, states = operation.inputs(shape, seed), operation.states(shape)
    run = getattr(operation, form)
    whole = operation.run(run, inputs, states)
    outputs, start = [], 0
    for length in lengths:
        o, *states = operation.run(run, [x[:, start : start + length] for x in inputs], states)
        outputs.append(o)
        start += length
    for part, all_at_once in zip([torch.cat(outputs, 1), *states], whole, strict=True):
        assert_close(part, all_at_once, "operation")


@every_form
@given(lengths=st.lists(st.integers(1, 3), min_size=2, max_size=40))
@settings(max_examples=6)
@every_operation
def test_packed_documents_of_one_to_three_tokens_equal_each_alone(operation, form, lengths):
    bounds = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    shape = Shape(T=bounds[-1], cu=tuple(bounds))
    inputs, states = operation.inputs(shape), operation.states(shape)
    o, *final = operation.run(getattr(operation, form), inputs, states, shape.cu_seqlens())
    for n in range(0, len(lengths), 7):
        part = slice(bounds[n], bounds[n + 1])
        alone = operation.run(operation.recurrent, [x[:, part] for x in inputs], [s[n : n + 1] for s in states])
        assert_close(o[:, part], alone[0], "operation")
        for a, b in zip(final, alone[1:], strict=True):
            assert_close(a[n : n + 1], b, "operation")


STRONG = (0.0, -1.0, -20.0, -1000.0, -math.inf)


def assert_strong_decay_is_right(operation, form, inputs, states):
    """Float32 results within 1e-6 of the float64 recurrence and finite gradients; all of float64 within 1e-12."""
    shape_independent = [x.float().double() for x in inputs], [x.float().double() for x in states]
    expected = with_gradients(operation, "recurrent", *shape_independent)
    single = with_gradients(operation, form, [x.float() for x in inputs], [x.float() for x in states])
    for a, e in zip(single[:2], expected[:2], strict=True):
        assert_close(a, e, "operation")
    for a, e in zip(single[2:], expected[2:], strict=True):
        assert torch.isfinite(a).all()
        assert_close(a, e, "gradient")
    for a, e in zip(with_gradients(operation, form, *shape_independent), expected, strict=True):
        assert_close(a, e, "operation")


@every_form
@pytest.mark.parametrize("decay", STRONG, ids=str)
@pytest.mark.parametrize("place", [0, 1, 16, 31, 63, 64])
@gated
def test_one_strong_decay_at_any_place_of_a_chunk_gives_the_recurrence(operation, place, decay, form):
    inputs = operation.inputs(Shape(T=70, K=8, V=8), decay=0.1)
    inputs[3][:, place] = decay
    assert_strong_decay_is_right(operation, form, inputs, operation.states(Shape()))


@every_form
@pytest.mark.parametrize("decay", STRONG[1:], ids=str)
@gated
def test_the_same_strong_decay_everywhere_gives_the_recurrence(operation, decay, form):
    inputs = operation.inputs(Shape(T=70))
    inputs[3].fill_(decay)
    assert_strong_decay_is_right(operation, form, inputs, operation.states(Shape()))


@every_form
@given(seed=st.integers(0, 1000))
@settings(max_examples=5)
@gated
def test_strong_decays_mixed_over_tokens_and_channels_give_the_recurrence(operation, form, seed):
    inputs = operation.inputs(Shape(T=130), seed)
    draw = torch.Generator().manual_seed(seed)
    choice = torch.randint(-8, len(STRONG), inputs[3].shape, generator=draw)
    strong = torch.tensor(STRONG, dtype=torch.float64)[choice.clamp(min=0)]
    inputs[3] = torch.where(choice < 0, inputs[3], strong)
    assert_strong_decay_is_right(operation, form, inputs, operation.states(Shape(T=130)))


def long_inputs(operation, T):
    inputs = operation.inputs(Shape(T=T, K=4, V=4), beta=1.0, decay=0.2)
    return [x.float().double() for x in inputs]


@pytest.mark.parametrize("operation", [LINEAR, KDA], ids=str)
def test_65536_and_65537_tokens_give_the_recurrence_and_the_same_bits(operation):
    inputs = long_inputs(operation, 65_537)
    with torch.no_grad():
        expected = operation.run(operation.recurrent, inputs)
        for dtype in (torch.float32, torch.float64):
            longer = operation.run(operation.chunk, [x.to(dtype) for x in inputs])
            shorter = operation.run(operation.chunk, [x[:, :65_536].to(dtype) for x in inputs])
            for a, e in zip(longer, expected, strict=True):
                assert_close(a, e, "operation")
            assert torch.equal(shorter[0], longer[0][:, :65_536])


@pytest.mark.slow
@pytest.mark.parametrize("T", [65_536, 65_537])
@every_operation
def test_the_gradients_of_very_long_rows_are_those_of_their_tail(operation, T):
    """The last 2,000 tokens get the same gradients from the whole row as alone, begun with the state before them."""
    inputs = [x.requires_grad_() for x in long_inputs(operation, T)]
    o, *_ = operation.run(operation.chunk, inputs)
    gradients = torch.autograd.grad((o * normal(o)[0]).sum(), inputs)
    assert all(torch.isfinite(g).all() for g in gradients)
    cut = T - 2_000
    with torch.no_grad():
        _, *states = operation.run(operation.chunk, [x[:, :cut] for x in inputs])
    tail = [x[:, cut:].detach().requires_grad_() for x in inputs]
    tail_o, *_ = operation.run(operation.recurrent, tail, states)
    expected = torch.autograd.grad((tail_o * normal(o)[0][:, cut:]).sum(), tail)
    for g, e in zip(gradients, expected, strict=True):
        assert_close(g[:, cut:], e, "gradient")
