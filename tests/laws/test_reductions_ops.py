"""What ties the recurrent operations together: each is a special case of the next, and does what its name says."""

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.inputs import DELTA, FORMS, GATED_DELTA, KDA, LINEAR, LINEAR_PLAIN, Shape, normal
from tests.tolerances import assert_close

every_form = pytest.mark.parametrize("form", FORMS)
SHAPE = Shape(B=2, T=100, H=2, HV=4, K=8, V=6)


def run(operation, form, inputs, states=None, **options):
    return operation.run(getattr(operation, form), inputs, states, **options)


def assert_all_close(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, "operation")


@every_form
def test_kda_with_equal_channels_is_the_gated_delta_rule(form):
    q, k, v, g, beta = GATED_DELTA.inputs(SHAPE)
    channels = g.unsqueeze(-1).expand(*g.shape, SHAPE.K)
    states = GATED_DELTA.states(SHAPE)
    assert_all_close(
        run(KDA, form, [q, k, v, channels, beta], states), run(GATED_DELTA, form, [q, k, v, g, beta], states)
    )


@every_form
def test_the_gated_delta_rule_and_kda_without_decay_are_the_delta_rule(form):
    q, k, v, beta = DELTA.inputs(SHAPE)
    states = DELTA.states(SHAPE)
    expected = run(DELTA, form, [q, k, v, beta], states)
    assert_all_close(run(GATED_DELTA, form, [q, k, v, torch.zeros_like(beta), beta], states), expected)
    still = torch.zeros(*beta.shape, SHAPE.K, dtype=torch.float64)
    assert_all_close(run(KDA, form, [q, k, v, still, beta], states), expected)


@every_form
def test_linear_attention_regrouped_is_the_direct_sum_over_earlier_tokens(form):
    shape = Shape(T=150, K=8, V=6)
    q, k, v = LINEAR.inputs(shape)
    weights = torch.einsum("bthk,bshk->bhts", q, k).tril()
    direct = torch.einsum("bhts,bshv->bthv", weights, v)
    assert_close(run(LINEAR_PLAIN, form, [q, k, v], scale=1.0)[0], direct, "operation")
    normalised = torch.einsum("bhts,bshv->bthv", weights / weights.sum(-1, keepdim=True), v)
    torch.testing.assert_close(run(LINEAR, form, [q, k, v], scale=1.0)[0], normalised, rtol=1e-9, atol=1e-9)


@every_form
def test_the_weights_of_linear_attention_are_positive_and_sum_to_one(form):
    shape = Shape(T=80, K=8)
    q, k, _ = LINEAR.inputs(shape)
    # token s writes the s-th unit vector, so that a read lists the weights
    weights = run(LINEAR, form, [q, k, torch.eye(80, dtype=torch.float64)[None, :, None]])[0][0, :, 0]
    assert (weights >= 0).all()
    assert torch.equal(weights, weights.tril())
    torch.testing.assert_close(weights.sum(-1), torch.ones(80, dtype=torch.float64), rtol=0, atol=1e-9)


@every_form
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 1.7])
@pytest.mark.parametrize("operation", [DELTA, GATED_DELTA, KDA], ids=str)
def test_a_write_moves_the_read_from_what_was_held_toward_v_by_beta(operation, beta, form):
    shape = Shape(T=1, H=2, HV=2, K=8, V=6)
    inputs, states = operation.inputs(shape), operation.states(shape)
    inputs[0], inputs[-1] = inputs[1], torch.full_like(inputs[-1], beta)  # read where it was written
    if operation.gate is not None:
        inputs[3] = torch.zeros_like(inputs[3])
    k, v = inputs[1][0, 0], inputs[2][0, 0]
    held = torch.einsum("hk,hkv->hv", k, states[0][0])
    o, _ = run(operation, form, inputs, states, scale=1.0)
    torch.testing.assert_close(o[0, 0], (1 - beta) * held + beta * v, rtol=1e-12, atol=1e-12)
    if beta == 1.0:
        torch.testing.assert_close(o[0, 0], v, rtol=1e-12, atol=1e-12)


@every_form
def test_fade_then_correct_differs_from_correct_then_fade(form):
    shape = Shape(T=1, K=8, V=6)
    q, k, v, g, beta = KDA.inputs(shape)
    states = KDA.states(shape)
    fade = g[:, 0].exp().unsqueeze(-1)
    _, ours = run(KDA, form, [q, k, v, g, beta], states)
    still = torch.zeros_like(g)
    _, faded_first = run(KDA, form, [q, k, v, still, beta], [fade * states[0]])
    _, corrected = run(KDA, form, [q, k, v, still, beta], states)
    assert_close(ours, faded_first, "operation")
    assert (ours - fade * corrected).abs().max() > 1e-2


@every_form
def test_a_full_write_of_the_same_key_replaces_what_an_addition_would_pile_up(form):
    k = F.normalize(normal(torch.zeros(1, 1, 1, 8, dtype=torch.float64))[0], dim=-1).expand(1, 2, 1, 8)
    v = normal(torch.zeros(1, 2, 1, 6, dtype=torch.float64))[0]
    replaced, _ = run(DELTA, form, [k, k, v, torch.ones(1, 2, 1, dtype=torch.float64)], scale=1.0)
    torch.testing.assert_close(replaced, v, rtol=1e-12, atol=1e-12)
    added, _ = run(LINEAR_PLAIN, form, [k, k, v], scale=1.0)
    torch.testing.assert_close(added[:, 1], v[:, 0] + v[:, 1], rtol=1e-12, atol=1e-12)
