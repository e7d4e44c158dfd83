"""The router and the experts: ties, gradients, experts with no tokens or all, against a loop over tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewell.errors import ShapeError
from statewell.kernels import ops
from tests.tolerances import assert_close


def rows(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def swiglu(gate, up):
    return torch.nn.functional.silu(gate) * up


def expert_weights(E=5, I=6, Din=4, Dout=3, dtype=torch.float64):
    return (
        rows(E, I, Din, seed=1, dtype=dtype),
        rows(E, I, Din, seed=2, dtype=dtype),
        rows(E, Dout, I, seed=3, dtype=dtype),
    )


def by_token(x, index, weight, w1, w3, w2, activation):
    """The definition: every token, every choice, one at a time."""
    outputs = []
    for token, chosen, weights in zip(x, index.tolist(), weight, strict=True):
        made = [w2[e] @ activation(w1[e] @ token, w3[e] @ token) * a for e, a in zip(chosen, weights, strict=True)]
        outputs.append(torch.stack(made).sum(dim=0))
    return torch.stack(outputs)


def test_the_router_picks_the_highest_biased_scores_and_weighs_by_the_unbiased_ones():
    x, weight, bias = rows(2, 7, 4), rows(6, 4, seed=1), rows(6, seed=2)
    index, share = ops.route(x, weight, bias, 3, scaling=2.5)
    scores = torch.sigmoid(x @ weight.T)
    assert torch.equal(index, (scores + bias).topk(3, dim=-1).indices)
    chosen = scores.gather(-1, index)
    assert_close(share, 2.5 * chosen / (chosen.sum(-1, keepdim=True) + 1e-20), "operation")
    assert index.dtype is torch.int64


def test_renormalising_is_left_out_on_request_and_for_a_single_expert():
    x, weight, bias = rows(7, 4), rows(6, 4, seed=1), torch.zeros(6, dtype=torch.float64)
    scores = torch.sigmoid(x @ weight.T)
    index, share = ops.route(x, weight, bias, 2, renormalize=False)
    assert_close(share, scores.gather(-1, index), "operation")
    index, share = ops.route(x, weight, bias, 1, scaling=3.0)
    assert_close(share, 3 * scores.max(dim=-1, keepdim=True).values, "operation")


@pytest.mark.parametrize("E", [4, 8, 64, 300])
@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_exact_ties_go_to_the_lowest_experts(E, top_k):
    x, bias = rows(50, 3, dtype=torch.float32), torch.zeros(E)
    index, _ = ops.route(x, torch.zeros(E, 3), bias, top_k)
    assert torch.equal(index, torch.arange(top_k).expand(50, top_k))
    groups = torch.arange(E) % 3  # three levels of score, each held by many experts
    index, _ = ops.route(x, torch.zeros(E, 3), groups.float(), top_k)
    expected = torch.arange(E)[groups == 2]
    expected = torch.cat([expected, torch.arange(E)[groups == 1], torch.arange(E)[groups == 0]])[:top_k]
    assert torch.equal(index, expected.expand(50, top_k))


@settings(max_examples=40, deadline=None)
@given(levels=st.lists(st.integers(0, 2), min_size=2, max_size=20), top_k=st.integers(1, 20))
def test_any_pattern_of_ties_sorts_by_score_then_number(levels, top_k):
    E, top_k = len(levels), min(top_k, len(levels))
    bias = torch.tensor(levels, dtype=torch.float32)
    bias[bias == 0] = float("-inf")
    index, _ = ops.route(torch.ones(1, 2), torch.zeros(E, 2), bias, top_k)
    assert index[0].tolist() == sorted(range(E), key=lambda e: (-levels[e], e))[:top_k]


def by_group(scores, bias, top_k, count, kept):
    """The definition for one token: experts of the best groups in order of biased score."""
    biased = (scores + bias).tolist()
    size = len(biased) // count
    judged = [sum(sorted(biased[g * size : (g + 1) * size])[-2:]) for g in range(count)]
    best = sorted(range(count), key=lambda g: (-judged[g], g))[:kept]
    inside = [e for g in best for e in range(g * size, (g + 1) * size)]
    return sorted(inside, key=lambda e: (-biased[e], e))[:top_k]


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (2, 1), (4, 2), (6, 6)])
@pytest.mark.parametrize("renormalize", [True, False])
def test_grouped_routing_chooses_inside_the_best_groups_alone(count, kept, renormalize):
    x, weight, bias = rows(40, 4), rows(12, 4, seed=1), rows(12, seed=2)
    index, share = ops.route_grouped(x, weight, bias, 2, (count, kept), 2.5, renormalize)
    scores = torch.sigmoid(x @ weight.T)
    assert index.tolist() == [by_group(row, bias, 2, count, kept) for row in scores]
    chosen = scores.gather(-1, index)
    total = chosen.sum(-1, keepdim=True) if renormalize else 1.0
    assert_close(share, 2.5 * chosen / total, "operation")


def test_one_group_is_no_group_and_ties_go_to_the_lowest_group():
    x, weight, bias = rows(30, 4), rows(12, 4, seed=1), rows(12, seed=2)
    for ours, plain in zip(ops.route_grouped(x, weight, bias, 3, (1, 1)), ops.route(x, weight, bias, 3), strict=True):
        assert torch.equal(ours, plain)
    tied = torch.zeros(12, dtype=torch.float64)
    index, _ = ops.route_grouped(x, torch.zeros_like(weight), tied, 4, (4, 2))
    assert torch.equal(index, torch.arange(4).expand(30, 4))


@pytest.mark.parametrize("groups", [(5, 1), (12, 3), (4, 0), (4, 5), (6, 1), (0, 0)])
def test_groups_that_cannot_be_are_refused(groups):
    with pytest.raises(ShapeError, match="route_grouped: 3 of 12 experts"):
        ops.route_grouped(rows(2, 4), rows(12, 4), rows(12), 3, groups)


@pytest.mark.parametrize("renormalize", [True, False])
def test_softmax_routing_weighs_by_the_probability(renormalize):
    x, weight = rows(2, 7, 4), rows(6, 4, seed=1)
    index, share = ops.route_softmax(x, weight, 3, 1.5, renormalize)
    best = torch.softmax(x @ weight.T, dim=-1).topk(3, dim=-1)
    assert torch.equal(index, best.indices)
    total = best.values.sum(-1, keepdim=True) if renormalize else 1.0
    assert_close(share, 1.5 * best.values / total, "operation")
    index, _ = ops.route_softmax(x, torch.zeros_like(weight), 4)
    assert torch.equal(index, torch.arange(4).expand(2, 7, 4))


def test_gradients_of_both_other_routers_are_those_of_finite_differences():
    x, weight, bias = rows(5, 4).requires_grad_(), rows(6, 4, seed=1).requires_grad_(), rows(6, seed=2)
    assert torch.autograd.gradcheck(lambda x, w: ops.route_softmax(x, w, 2)[1], (x, weight))
    assert torch.autograd.gradcheck(lambda x, w: ops.route_grouped(x, w, bias, 2, (3, 2))[1], (x, weight))


def test_the_bias_gets_no_gradient_and_the_scores_do():
    x, weight, bias = (
        rows(5, 4).requires_grad_(),
        rows(6, 4, seed=1).requires_grad_(),
        rows(6, seed=2).requires_grad_(),
    )
    _, share = ops.route(x, weight, bias, 2)
    dx, dweight, dbias = torch.autograd.grad((share * rows(5, 2, seed=3)).sum(), (x, weight, bias), allow_unused=True)
    assert dbias is None
    assert dx.abs().min() > 0
    assert dweight.any()


@pytest.mark.parametrize("renormalize", [True, False])
def test_gradcheck_of_the_router(renormalize):
    x, weight, bias = rows(5, 3).requires_grad_(), rows(4, 3, seed=1).requires_grad_(), rows(4, seed=2)
    assert torch.autograd.gradcheck(lambda x, weight: ops.route(x, weight, bias, 2, 1.5, renormalize)[1], (x, weight))


def test_scores_are_float32_in_a_bf16_model():
    x, weight, bias = (
        rows(5, 4, dtype=torch.bfloat16),
        rows(6, 4, seed=1, dtype=torch.bfloat16),
        torch.zeros(6),
    )
    index, share = ops.route(x, weight, bias, 2)
    wide_index, wide_share = ops.route(x.float(), weight.float(), bias, 2)
    assert share.dtype is torch.float32
    assert torch.equal(index, wide_index)
    assert torch.equal(share, wide_share)


def test_saturated_scores_leave_finite_weights_and_gradients():
    x = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    index, share = ops.route(x, torch.tensor([[1.0], [1.0], [-1.0]], requires_grad=True), torch.zeros(3), 2)
    assert index.tolist() == [[0, 1], [2, 0]]
    (dx,) = torch.autograd.grad(share.sum(), x)
    assert share.isfinite().all()
    assert dx.isfinite().all()


CHOICES = {
    "spread": [[0, 3], [2, 1], [4, 0], [3, 2], [1, 4], [0, 1], [3, 0]],
    "one expert has all tokens, two have none": [[2, 0], [2, 1], [0, 2], [1, 2], [2, 1], [2, 0], [0, 2]],
    "a single choice": [[4], [4], [0], [4], [4], [0], [4]],
}


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_experts_equal_the_loop_over_tokens_with_all_gradients(choice):
    index = torch.tensor(CHOICES[choice])
    inputs = [rows(7, 4, seed=4), rows(7, index.shape[1], seed=5), *expert_weights()]
    results = []
    for run in (ops.experts, by_token):
        x, weight, w1, w3, w2 = tensors = [t.clone().requires_grad_() for t in inputs]
        out = run(x, index, weight, w1, w3, w2, swiglu)
        results.append([out, *torch.autograd.grad((out * rows(7, 3, seed=6)).sum(), tensors)])
    for ours, expected in zip(*results, strict=True):
        assert_close(ours, expected, "operation")
    unused = sorted(set(range(5)) - set(index.flatten().tolist()))
    assert not results[0][3][unused].any(), "an expert without tokens got a gradient"


def test_experts_with_no_tokens_at_all_return_nothing_and_zero_gradients():
    w1, w3, w2 = (w.requires_grad_() for w in expert_weights())
    x = rows(0, 4).requires_grad_()
    out = ops.experts(x, torch.zeros(0, 2, dtype=torch.int64), rows(0, 2), w1, w3, w2, swiglu)
    assert out.shape == (0, 3)
    assert not any(g.any() for g in torch.autograd.grad(out.sum(), (x, w1, w3, w2)))


def test_gradcheck_of_the_experts():
    index = torch.tensor([[0, 2], [2, 1], [2, 0]])
    tensors = [
        rows(3, 3),
        rows(3, 2, seed=1),
        rows(4, 2, 3, seed=2),
        rows(4, 2, 3, seed=3),
        rows(4, 2, 2, seed=4),
    ]
    tensors = [t.requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(lambda x, weight, *w: ops.experts(x, index, weight, *w, swiglu), tensors)


def test_other_tokens_of_the_batch_change_a_result_by_rounding_only():
    index = torch.tensor(CHOICES["spread"])
    x, weight = rows(7, 4, seed=4), rows(7, 2, seed=5)
    together = ops.experts(x, index, weight, *expert_weights(), swiglu)
    for m in range(7):
        alone = ops.experts(x[m : m + 1], index[m : m + 1], weight[m : m + 1], *expert_weights(), swiglu)
        assert_close(alone[0], together[m], "operation")


def test_frozen_experts_still_pass_gradients_to_their_inputs():
    index = torch.tensor(CHOICES["spread"])
    x = rows(7, 4, seed=4).requires_grad_()
    out = ops.experts(x, index, rows(7, 2, seed=5), *expert_weights(), swiglu)
    (dx,) = torch.autograd.grad(out.sum(), x)
    assert dx.abs().min() > 0


def test_float32_experts_stay_within_the_limit_and_bf16_is_computed_in_float32():
    index = torch.tensor(CHOICES["spread"])
    x, weight, weights = (
        rows(7, 4, dtype=torch.float32),
        rows(7, 2, seed=5, dtype=torch.float32),
        expert_weights(),
    )
    narrow = [w.float() for w in weights]
    exact = by_token(x.double(), index, weight.double(), *(w.double() for w in narrow), swiglu)
    assert_close(ops.experts(x, index, weight, *narrow, swiglu), exact, "operation")
    half = [w.bfloat16() for w in narrow]
    out = ops.experts(x.bfloat16(), index, weight, *half, swiglu)
    assert out.dtype is torch.bfloat16
    expected = ops.experts(x.bfloat16().float(), index, weight, *(w.float() for w in half), swiglu).bfloat16()
    assert torch.equal(out, expected)
