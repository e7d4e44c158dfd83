"""The compiled delta family: each instruction set against the float64 recurrence, its laws, operators and pool."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from statewell.errors import RequestError
from statewell.kernels import cpu, ops, registry
from statewell.kernels.cpu import binding, delta, linear
from statewell.kernels.registry import Call
from tests.kernels.inputs import (
    DELTA,
    GATED_DELTA,
    GOLDEN_CASES,
    KDA,
    LINEAR,
    OPERATIONS,
    Shape,
    golden_case,
    normal,
    with_gradients,
)
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(binding.native is None, reason=f"the cpu kernels are missing: {binding.MISSING}")

COMPILED = {str(op): replace(op, chunk=cpu.OPS[op.name], step=cpu.OPS[f"{op.name}_step"]) for op in OPERATIONS}
DELTA_FAMILY = (DELTA, GATED_DELTA, KDA)
every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=str)
SHAPES = [
    Shape(B=4, T=1, H=2, HV=4, K=5, V=7),
    Shape(B=2, T=63, H=2, HV=2, K=16, V=8),
    Shape(T=64, HV=3, K=8, V=24),
    Shape(B=3, T=33, K=17, V=50),
    Shape(T=130, H=2, HV=4, K=32, V=16),
    Shape(T=1000, K=16, V=8),
    Shape(T=70, K=128, V=128),
    Shape(T=40, K=3, V=1),
    Shape(T=200, H=1, HV=2, K=12, V=9, cu=(0, 1, 3, 3, 6, 70, 71, 135, 200)),
    Shape(T=12, H=2, HV=2, K=32, V=32, cu=(0, 1, 3, 6, 7, 9, 12)),
]


@pytest.fixture(params=binding.instruction_sets() or ("none",))
def instructions(request):
    """Each instruction set of this build and processor in turn."""
    with binding.use_instruction_set(request.param):
        yield request.param


@pytest.fixture
def nan_filled():
    """Fresh memory holds NaN, so that a place no kernel writes is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def float32(operation, shape, beta=1.0, decay=1.0):
    inputs = operation.inputs(shape, beta=beta, decay=decay)
    return [x.float() for x in inputs], [x.float() for x in operation.states(shape)]


def wide(tensors):
    return [x.double() for x in tensors]


def assert_near_the_recurrence(operation, inputs, states, cu_seqlens=None):
    expected = with_gradients(operation, "recurrent", wide(inputs), wide(states), cu_seqlens)
    actual = with_gradients(COMPILED[str(operation)], "chunk", inputs, states, cu_seqlens)
    results = 1 + len(states)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_close(a, e, "operation" if i < results else "gradient")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@every_operation
def test_outputs_states_and_every_gradient_are_near_the_float64_recurrence(operation, shape, instructions, nan_filled):
    inputs, states = float32(operation, shape)
    assert_near_the_recurrence(operation, inputs, states, shape.cu_seqlens())


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
@every_operation
def test_a_step_is_near_the_float64_recurrence_and_leaves_its_state_alone(operation, shape, instructions, nan_filled):
    shape = replace(shape, T=1)
    inputs, states = float32(operation, shape)
    inputs, held = [x[:, 0] for x in inputs], [x.clone() for x in states]
    expected = operation.run_step(wide(inputs), wide(states))
    actual = COMPILED[str(operation)].run_step(inputs, states)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, "operation")
    assert all(map(torch.equal, states, held))


@pytest.mark.parametrize(("name", "case"), GOLDEN_CASES)
def test_the_golden_outputs_states_and_gradients_come_out(name, case, instructions):
    golden = golden_case(name, case, torch.float32)
    run = COMPILED[str(golden.operation)]
    results = with_gradients(
        run, "chunk", golden.inputs, golden.states, golden.cu_seqlens, golden.scale, golden.weights
    )
    for (key, expected), result in zip(golden.expected.items(), results, strict=False):
        error = (result.double() - expected).abs().max().item()
        size = max(1.0, expected.abs().max().item())
        assert error <= 2e-5 * size, f"{key} is {error:.1e} off"


@every_operation
def test_later_tokens_change_no_bit_of_earlier_ones(operation, instructions):
    shape = Shape(T=70, H=2, HV=2, K=20, V=40)
    inputs, states = float32(operation, shape)
    run = COMPILED[str(operation)]
    whole = run.run(run.chunk, inputs, states)[0]
    for cut in (1, 31, 32, 33, 69):
        assert torch.equal(run.run(run.chunk, [x[:, :cut] for x in inputs], states)[0], whole[:, :cut])
        other = [torch.cat([x[:, :cut], torch.full_like(x[:, cut:], -3.0)], 1) for x in inputs]
        assert torch.equal(run.run(run.chunk, other, states)[0][:, :cut], whole[:, :cut])


@every_operation
def test_neighbours_change_no_bit_of_a_segment(operation, instructions):
    shape = Shape(T=90, H=2, HV=2, K=20, V=40, cu=(0, 2, 3, 50, 90))
    inputs, states = float32(operation, shape)
    run = COMPILED[str(operation)]
    packed = run.run(run.chunk, inputs, states, shape.cu_seqlens())
    for n, (start, stop) in enumerate(zip(shape.cu[:-1], shape.cu[1:], strict=True)):
        alone = run.run(run.chunk, [x[:, start:stop] for x in inputs], [x[n : n + 1] for x in states])
        assert torch.equal(alone[0], packed[0][:, start:stop])
        assert all(torch.equal(a, p[n : n + 1]) for a, p in zip(alone[1:], packed[1:], strict=True))


@pytest.mark.parametrize("value", [-1000.0, -104.0, -float("inf")])
@pytest.mark.parametrize("operation", [GATED_DELTA, KDA], ids=str)
def test_strong_decay_forgets_exactly_with_finite_gradients(operation, value, instructions):
    shape = Shape(T=70, H=1, HV=2, K=16, V=16)
    inputs, states = float32(operation, shape)
    inputs[3][:, [3, 4, 31, 32, 40, 69]] = value
    if operation is KDA:
        inputs[3][..., ::2] = float32(operation, shape)[0][3][..., ::2]
    run = COMPILED[str(operation)]
    actual = with_gradients(run, "chunk", inputs, states)
    assert all(x.isfinite().all() for x in actual)
    expected = operation.run(operation.recurrent, wide(inputs), wide(states))
    for a, e in zip(actual, expected, strict=False):
        assert_close(a, e, "operation")
    if value > -float("inf"):  # where autograd through the definition is finite
        assert_near_the_recurrence(operation, inputs, states)


@every_operation
def test_a_nan_reaches_what_depends_on_it_and_nothing_before(operation, instructions):
    shape = Shape(T=70, H=1, HV=2, K=16, V=40)
    inputs, states = float32(operation, shape)
    run = COMPILED[str(operation)]
    clean = run.run(run.chunk, inputs, states)
    for x in inputs:
        spoiled = [y.clone() if y is x else y for y in inputs]
        next(y for y, z in zip(spoiled, inputs, strict=True) if z is x)[:, 35] = float("nan")
        results = with_gradients(run, "chunk", spoiled, states)
        assert torch.equal(results[0][:, :35], clean[0][:, :35])
        assert results[0][:, 35].isnan().all()
        kept = x is inputs[0]  # q only reads
        assert results[1].isnan().any() != kept


def test_no_tokens_and_no_rows_come_back_empty(instructions):
    for shape in (Shape(B=2, T=0, K=8, V=8), Shape(B=0, T=5, K=8, V=8)):
        inputs, states = float32(KDA, shape)
        o, final, *gradients = with_gradients(COMPILED["kda"], "chunk", inputs, states)
        assert o.shape == inputs[2].shape
        assert torch.equal(final, states[0])
        assert [x.shape for x in gradients] == [x.shape for x in (*inputs, *states)]


@pytest.mark.parametrize("operation", DELTA_FAMILY, ids=str)
def test_slices_of_wider_projections_are_read_where_they_lie(operation):
    shape = Shape(B=2, T=40, H=2, HV=2, K=16, V=16)
    inputs, states = float32(operation, shape)
    together = torch.cat([x.flatten(2) for x in inputs], -1)
    views, at = [], 0
    for x in inputs:
        width = x[0, 0].numel()
        views.append(together[..., at : at + width].unflatten(-1, x.shape[2:]))
        at += width
    run = COMPILED[str(operation)]
    for a, b in zip(
        with_gradients(run, "chunk", views, states), with_gradients(run, "chunk", inputs, states), strict=True
    ):
        assert torch.equal(a, b)
    swapped = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in inputs]
    assert torch.equal(run.run(run.chunk, swapped, states)[0], run.run(run.chunk, inputs, states)[0])


@every_operation
def test_two_threads_give_what_one_gives(operation, instructions):
    run = COMPILED[str(operation)]
    for shape in (Shape(B=4, T=50, H=2, HV=2, K=20, V=70), Shape(T=50, K=20, V=70)):
        inputs, states = float32(operation, shape)
        one = with_gradients(run, "chunk", inputs, states)
        torch.set_num_threads(2)
        two = with_gradients(run, "chunk", inputs, states)
        torch.set_num_threads(1)
        assert all(map(torch.equal, one[:2], two[:2]))
        for a, b in zip(one, two, strict=True):
            assert_close(a, b, "operation")


FORKED = """
import os, torch
from statewell.kernels import ops
torch.set_num_threads(2)
x = torch.rand(8, 50, 2, 32)
def run():
    return ops.delta(x, x / 8, x, x[..., 0])[0]
here = run()
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(run(), here) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_makes_its_own_pool():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=True, timeout=60)


def test_the_normalised_operator_passes_opcheck():
    inputs, states = float32(LINEAR, Shape(T=40, H=1, HV=2, K=8, V=8, cu=(0, 5, 40)))
    leaves = [x.requires_grad_() for x in (*inputs, *states)]
    torch.library.opcheck(linear.linear_rule, (*leaves, torch.tensor([0, 5, 40]), 0.3))


@pytest.mark.parametrize("operation", [LINEAR, *DELTA_FAMILY], ids=str)
def test_the_operators_pass_opcheck(operation):
    rule = {"linear": delta.ADDITIVE, "delta": delta.DELTA, "gated_delta": delta.GATED_DELTA, "kda": delta.KEY_DECAY}
    inputs, states = float32(operation, Shape(T=40, H=1, HV=2, K=8, V=8, cu=(0, 5, 40)))
    leaves = [x.requires_grad_() for x in (*inputs, states[0])]
    q, k, v, *gates = leaves[: len(inputs)]
    g = gates[0] if operation.gate else None
    beta = gates[-1] if gates else None
    bounds = torch.tensor([0, 5, 40])
    torch.library.opcheck(delta.delta_rule, (rule[operation.name], q, k, v, g, beta, leaves[-1], bounds, 0.3))


def test_only_the_gradients_asked_for_are_given():
    inputs, _ = float32(KDA, Shape(T=70))
    inputs[2].requires_grad_()
    o, _ = ops.kda(*inputs)
    o.sum().backward()
    assert inputs[2].grad is not None
    assert all(x.grad is None for x in (*inputs[:2], *inputs[3:]))


def test_a_gradient_flows_through_a_final_state_alone():
    inputs, states = float32(KDA, Shape(T=40))
    leaves = [x.requires_grad_() for x in (*inputs, *states)]
    weight = normal(states[0])[0]
    gradients = torch.autograd.grad((ops.kda(*leaves[:5], state=leaves[5])[1] * weight).sum(), leaves)
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    final = KDA.recurrent(*doubles[:5], 8**-0.5, doubles[5], None)[1]
    for a, e in zip(gradients, torch.autograd.grad((final * weight).sum(), doubles, allow_unused=True), strict=True):
        assert_close(a, torch.zeros_like(a) if e is None else e, "gradient")


def test_float32_on_the_processor_runs_compiled_and_the_rest_is_refused_with_a_reason():
    dims = (1, 8, 1, 8)
    assert cpu.supports("kda", Call("cpu", torch.float32, dims, True)) is None
    assert "float64" in str(cpu.supports("kda", Call("cpu", torch.float64, dims, True)))
    assert "cuda" in str(cpu.supports("kda", Call("cuda", torch.float32, dims, True)))
    assert "different dtypes" in str(cpu.supports("kda", Call("cpu", torch.float32, dims, True, True)))
    chosen = {choice.op: choice.backend for choice in registry.explain()}
    assert {chosen[op.name] for op in OPERATIONS} == {"cpu"}


def test_without_the_compiled_module_every_operation_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(binding, "native", None)
    assert "C++17 compiler" in str(cpu.supports("kda", Call("cpu", torch.float32, (), False)))
    with pytest.raises(RequestError, match=r"C\+\+17 compiler"):
        binding.compiled()


def test_an_unknown_instruction_set_is_refused_by_name():
    with pytest.raises(RequestError, match="no instruction set 'mmx'"), binding.use_instruction_set("mmx"):
        pass
