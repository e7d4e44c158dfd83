"""The definition: golden vectors, gradients, its formulas written out, and what callers may rely on."""

import math

import pytest
import torch

from tests.kernels.inputs import (
    GOLDEN_CASES,
    KDA,
    LINEAR,
    OPERATIONS,
    Shape,
    check_golden,
)

every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=str)


@pytest.mark.parametrize(("name", "case"), GOLDEN_CASES)
def test_the_recurrence_gives_the_golden_outputs_states_and_gradients(name, case):
    check_golden(name, case, "recurrent", torch.float64, 1e-9)


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, case in GOLDEN_CASES if case in ("basic", "elu_norm")]
)
def test_the_recurrence_in_float32_stays_near_the_golden_results(name, case):
    check_golden(name, case, "recurrent", torch.float32, 2e-5)


@every_operation
def test_the_recurrence_passes_gradcheck(operation):
    shape = Shape(T=5, H=1, HV=2, K=3, V=2, cu=(0, 2, 2, 5))
    leaves = [x.requires_grad_() for x in (*operation.inputs(shape), *operation.states(shape))]
    count = len(operation.inputs(shape))

    def run(*x):
        return operation.run(operation.recurrent, x[:count], x[count:], shape.cu_seqlens())

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


def test_kda_is_fade_correct_and_read_written_out_for_one_head():
    shape = Shape(T=6, K=3, V=2)
    q, k, v, g, beta = (x[0, :, 0] for x in KDA.inputs(shape))
    S = KDA.states(shape)[0]
    o, final = KDA.run(KDA.recurrent, KDA.inputs(shape), [S])
    S = S[0, 0].clone()
    for t in range(6):
        S = torch.diag(g[t].exp()) @ S
        S = S + torch.outer(k[t], beta[t] * (v[t] - S.T @ k[t]))
        torch.testing.assert_close(o[0, t, 0], 0.3 * S.T @ q[t], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(final[0, 0], S, rtol=1e-13, atol=1e-13)


@every_operation
def test_steps_in_a_loop_are_the_recurrence_bit_for_bit(operation):
    shape = Shape(B=2, T=7, H=2, HV=4, K=5, V=3)
    inputs, states = operation.inputs(shape), operation.states(shape)
    o, *final = operation.run(operation.recurrent, inputs, states)
    for t in range(shape.T):
        step_o, *states = operation.run_step([x[:, t] for x in inputs], states)
        assert torch.equal(step_o, o[:, t])
    assert all(map(torch.equal, states, final))


@every_operation
def test_value_head_h_uses_query_head_h_over_the_group_size(operation):
    shape = Shape(T=9, H=2, HV=6)
    inputs, states = operation.inputs(shape), operation.states(shape)
    o, final, *_ = operation.run(operation.recurrent, inputs, states)
    for h in range(6):
        alone = [x[:, :, h // 3, None] if i < 2 else x[:, :, h, None] for i, x in enumerate(inputs)]
        head_o, head_final, *_ = operation.run(operation.recurrent, alone, [s[:, h, None] for s in states])
        torch.testing.assert_close(head_o[:, :, 0], o[:, :, h], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(head_final[:, 0], final[:, h], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("form", ["recurrent", "chunk"])
@every_operation
def test_a_given_state_is_not_changed_and_none_means_zeros(operation, form):
    shape = Shape(B=2, T=3)
    inputs, states = operation.inputs(shape), operation.states(shape)
    before = [s.clone() for s in states]
    operation.run(getattr(operation, form), inputs, states)
    assert all(map(torch.equal, states, before))
    from_none = operation.run(getattr(operation, form), inputs)
    from_zeros = operation.run(getattr(operation, form), inputs, [torch.zeros_like(s) for s in states])
    assert all(map(torch.equal, from_none, from_zeros))


@pytest.mark.parametrize("form", ["recurrent", "chunk"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@every_operation
def test_outputs_have_the_dtype_of_v_and_states_at_least_float32(operation, dtype, form):
    inputs = [x.to(dtype).requires_grad_() for x in operation.inputs(Shape(T=3))]
    o, *states = operation.run(getattr(operation, form), inputs)
    assert o.dtype == dtype
    assert {s.dtype for s in states} == {torch.promote_types(dtype, torch.float32)}
    o.float().sum().backward()
    assert all(x.grad is not None and x.grad.dtype == dtype for x in inputs)


@pytest.mark.parametrize("form", ["recurrent", "chunk"])
@every_operation
def test_no_tokens_leave_the_state_as_it_was(operation, form):
    shape = Shape(T=0)
    states = operation.states(shape)
    o, *final = operation.run(getattr(operation, form), operation.inputs(shape), states)
    assert o.shape == (1, 0, 1, 8)
    assert all(map(torch.equal, final, states))


@pytest.mark.parametrize("form", ["recurrent", "chunk"])
@every_operation
def test_zero_query_and_key_rows_give_finite_results_and_gradients(operation, form):
    inputs = operation.inputs(Shape(T=70, HV=2))
    for x in inputs[:2]:
        x[:, 3:9] = 0
        x[:, 66] = 0
    inputs = [x.requires_grad_() for x in inputs]
    results = operation.run(getattr(operation, form), inputs)
    torch.stack([x.sum() for x in results]).sum().backward()
    assert all(torch.isfinite(x).all() for x in results)
    assert all(x.grad is not None and torch.isfinite(x.grad).all() for x in inputs)
    assert torch.equal(results[0][:, 3:9], torch.zeros_like(results[0][:, 3:9]))


def test_the_linear_normaliser_sums_the_keys():
    inputs = LINEAR.inputs(Shape(T=5))
    _, _, z = LINEAR.run(LINEAR.recurrent, inputs)
    torch.testing.assert_close(z[0, 0], inputs[1][0, :, 0].sum(0), rtol=1e-14, atol=0)
    assert math.isfinite(z.sum().item())
