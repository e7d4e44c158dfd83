"""The steps on a kept state: the same token as the steps that return a new state, written where the old one was."""

import pytest
import torch

from statewell.errors import ShapeError
from statewell.kernels import ops, registry
from tests.kernels.inputs import DELTA, GATED_DELTA, KDA, LINEAR, LINEAR_PLAIN, OPERATIONS, Shape
from tests.tolerances import assert_close

BACKENDS = ("cpu", "reference") if registry.instruction_sets() else ("reference",)
ROWS = torch.tensor([4, 0, 3])
KEPT = 6
every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=str)


@pytest.fixture(params=BACKENDS)
def backend(request):
    """Each backend that computes on this processor in turn."""
    with registry.use(request.param):
        yield request.param


def drawn(operation, rows=3, kept=KEPT, K=20, V=40):
    """One token of `rows` rows, float32, and `kept` rows of state."""
    inputs = operation.inputs(Shape(B=rows, T=1, H=2, HV=4, K=K, V=V), beta=1.0)
    states = operation.states(Shape(B=kept, T=1, H=2, HV=4, K=K, V=V))
    return [x[:, 0].float() for x in inputs], [x.float() for x in states]


def in_place(operation, inputs, states, rows):
    run = getattr(ops, f"{operation.name}_step_")
    if operation.normalize is None:
        return run(*inputs, states[0], rows)
    return run(*inputs, tuple(states) if operation.normalize else states[0], rows, normalize=operation.normalize)


def beside(operation, inputs, states):
    run = getattr(ops, f"{operation.name}_step")
    if operation.normalize is None:
        o, new = run(*inputs, state=states[0])
    else:
        state = tuple(states) if operation.normalize else states[0]
        o, new = run(*inputs, state=state, normalize=operation.normalize)
    return o, list(new) if operation.normalize else [new]


@every_operation
def test_the_named_rows_move_on_as_a_step_moves_them_and_no_other_row_changes_a_bit(operation, backend):
    inputs, states = drawn(operation)
    o, moved = beside(operation, inputs, [x[ROWS] for x in states])
    expected = [x.index_copy(0, ROWS, new) for x, new in zip(states, moved, strict=True)]
    places = [x.data_ptr() for x in states]
    assert torch.equal(in_place(operation, inputs, states, ROWS), o)
    assert all(map(torch.equal, states, expected))
    assert places == [x.data_ptr() for x in states]


@every_operation
def test_without_names_all_rows_move_on_in_order(operation, backend):
    inputs, states = drawn(operation, rows=KEPT)
    o, moved = beside(operation, inputs, states)
    assert torch.equal(in_place(operation, inputs, states, None), o)
    assert all(map(torch.equal, states, moved))


@every_operation
def test_many_tokens_one_by_one_are_near_the_float64_recurrence(operation, backend):
    shape = Shape(B=2, T=40, H=2, HV=4, K=20, V=40)
    inputs, states = operation.inputs(shape, beta=1.0), operation.states(shape)
    expected = operation.run(operation.recurrent, inputs, states, scale=20**-0.5)
    held = [x.float() for x in states]
    tokens = [in_place(operation, [x[:, t].float() for x in inputs], held, None) for t in range(40)]
    for a, e in zip((torch.stack(tokens, 1), *held), expected, strict=True):
        assert_close(a, e, "operation")


@every_operation
def test_gradients_are_those_of_the_step_beside_and_the_state_keeps_no_graph(operation, backend):
    inputs, states = drawn(operation)
    leaves = [x.requires_grad_() for x in inputs]
    o, _ = beside(operation, leaves, [x[ROWS] for x in states])
    expected = torch.autograd.grad(o.square().sum(), leaves)
    o = in_place(operation, leaves, states, ROWS)
    assert not any(x.requires_grad for x in states)
    in_place(operation, leaves, states, ROWS)  # moves the state before the backward of the first
    for a, e in zip(torch.autograd.grad(o.square().sum(), leaves), expected, strict=True):
        assert_close(a, e, "gradient")


@pytest.mark.parametrize("taps", [2, 3, 4, 5])
def test_a_convolution_token_by_token_is_the_whole_to_the_bit(taps):
    x, weight = torch.randn(2, 9, 37), torch.randn(37, taps)
    tails = torch.randn(4, taps - 1, 37)
    rows, others = torch.tensor([3, 1]), torch.tensor([0, 2])
    before = tails.clone()
    y, tail = ops.short_conv(x, weight, tails[rows])
    for t in range(9):
        assert torch.equal(ops.short_conv_step_(x[:, t], weight, tails, rows), y[:, t])
    assert torch.equal(tails[rows], tail)
    assert torch.equal(tails[others], before[others])


def test_a_convolution_step_gives_gradients_and_keeps_none(backend):
    x, weight = torch.randn(2, 7, requires_grad=True), torch.randn(7, 4, requires_grad=True)
    tails = torch.randn(2, 3, 7)
    expected = torch.autograd.grad(ops.short_conv(x[:, None], weight, tails.clone())[0].square().sum(), (x, weight))
    y = ops.short_conv_step_(x, weight, tails)
    ops.short_conv_step_(x, weight, tails)
    for a, e in zip(torch.autograd.grad(y.square().sum(), (x, weight)), expected, strict=True):
        assert_close(a, e, "gradient")
    assert not tails.requires_grad


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@every_operation
def test_what_is_not_a_number_stays_in_its_own_row(operation, value, backend):
    inputs, states = drawn(operation)
    clean, kept = in_place(operation, inputs, [x.clone() for x in states], ROWS), [x.clone() for x in states]
    inputs[2][1] = value
    o = in_place(operation, inputs, states, ROWS)
    assert not o[1].isfinite().any()
    assert torch.equal(o[[0, 2]], clean[[0, 2]])
    assert not states[0][0].isfinite().any()
    assert torch.equal(states[0][[1, 2, 5]], kept[0][[1, 2, 5]])


@every_operation
def test_no_rows_change_nothing(operation, backend):
    inputs, states = drawn(operation)
    kept = [x.clone() for x in states]
    o = in_place(operation, [x[:0] for x in inputs], states, torch.tensor([], dtype=torch.int64))
    assert o.shape == (0, 4, 40)
    assert all(map(torch.equal, states, kept))


@pytest.mark.skipif(BACKENDS == ("reference",), reason="the cpu kernels are missing")
@every_operation
def test_two_threads_give_what_one_gives(operation):
    inputs, states = drawn(operation, K=64, V=64)
    other = [x.clone() for x in states]
    one = in_place(operation, inputs, states, ROWS)
    torch.set_num_threads(2)
    two = in_place(operation, inputs, other, ROWS)
    torch.set_num_threads(1)
    assert torch.equal(one, two)
    assert all(map(torch.equal, states, other))


def kept_kda(**changes):
    inputs, (state,) = drawn(KDA)
    named = dict(zip(("q", "k", "v", "g", "beta"), inputs, strict=True))
    return {**named, "state": state, "rows": ROWS, **changes}


def kept_conv(**changes):
    given = {"x": torch.zeros(3, 8), "weight": torch.zeros(8, 4), "state": torch.zeros(6, 3, 8), "rows": ROWS}
    return {**given, **changes}


WIDE = torch.zeros(6, 4, 20, 80)
REFUSALS = [
    ("kda_step_", kept_kda(rows=None), "3 tokens came for 6 kept rows"),
    ("kda_step_", kept_kda(rows=torch.tensor([0, 1])), "[N] = (3,) is needed"),
    ("kda_step_", kept_kda(rows=ROWS.int()), "rows is torch.int32"),
    ("kda_step_", kept_kda(rows=torch.tensor([0, 1, 6])), "rows are [0, 1, 6], each of 0 to 5 may be named once"),
    ("kda_step_", kept_kda(rows=torch.tensor([0, 1, -1])), "each of 0 to 5 may be named once"),
    ("kda_step_", kept_kda(rows=torch.tensor([0, 1, 1])), "each of 0 to 5 may be named once"),
    ("kda_step_", kept_kda(state=torch.zeros(6, 4, 20, 41)), "need [M, HV, K, V] = (6, 4, 20, 40)"),
    ("kda_step_", kept_kda(state=torch.zeros(6, 4, 20)), "need [M, HV, K, V] = (6, 4, 20, 40)"),
    ("kda_step_", kept_kda(state=torch.zeros(6, 4, 20, 40).long()), "state is torch.int64, a floating-point dtype"),
    ("kda_step_", kept_kda(state=torch.zeros(6, 4, 20, 40, device="meta")), "state is on meta"),
    ("kda_step_", kept_kda(state=WIDE[..., :40]), "one that is changed in place must be contiguous"),
    ("kda_step_", kept_kda(state=torch.zeros(1, 4, 20, 40).expand(6, 4, 20, 40)), "must be contiguous"),
    ("kda_step_", kept_kda(state=torch.zeros(6, 4, 20, 40, requires_grad=True)), "a state changed in place has none"),
    ("delta_step_", kept_kda(beta=torch.zeros(3, 3)), "need [N, HV] = (3, 4)"),
    ("gated_delta_step_", kept_kda(), "need [N, HV] = (3, 4)"),
    ("linear_step_", kept_kda(), "with normalize=True the state is the pair (S, z)"),
    ("linear_step_", kept_kda(state=(WIDE[..., :40].contiguous(), torch.zeros(5, 4, 20))), "z has shape (5, 4, 20)"),
    ("linear_step_", kept_kda(state=(WIDE[..., :40].contiguous(), torch.zeros(6, 4, 19))), "z has shape (6, 4, 19)"),
    ("short_conv_step_", kept_conv(weight=torch.zeros(7, 4)), "need [D, W] = (8, 4)"),
    ("short_conv_step_", kept_conv(state=torch.zeros(6, 4, 8)), "need [M, W-1, D] = (6, 3, 8)"),
    ("short_conv_step_", kept_conv(rows=None), "3 tokens came for 6 kept rows"),
]


@pytest.mark.parametrize(("op", "given", "words"), REFUSALS, ids=[f"{op}: {words}" for op, _, words in REFUSALS])
def test_a_state_that_cannot_be_changed_in_place_is_refused_in_one_sentence(op, given, words, backend):
    if not op.startswith(("kda", "gated")):
        given = {name: x for name, x in given.items() if name != "g"}
    if op.startswith("linear"):
        given = {name: x for name, x in given.items() if name != "beta"}
    with pytest.raises(ShapeError) as refusal:
        getattr(ops, op)(**given)
    sentence = str(refusal.value)
    assert words in sentence
    assert sentence.startswith(f"{op}: ")
    assert sentence.endswith(".")


@pytest.mark.parametrize("operation", [LINEAR, LINEAR_PLAIN, DELTA, GATED_DELTA, KDA], ids=str)
def test_an_input_that_lies_in_the_state_is_refused(operation, backend):
    inputs, states = drawn(operation)
    inputs[2] = states[0][0, 0, :12, :40].view(3, 4, 40)
    with pytest.raises(ShapeError, match="v lies in state, which is changed in place"):
        in_place(operation, inputs, states, ROWS)
