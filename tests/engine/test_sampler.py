"""The sampler against the plain definition of each filter."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statewell.engine.sampler import (
    draw,
    greedy,
    min_p_mask,
    probabilities,
    sample,
    top_k_mask,
    top_p_mask,
)
from statewell.engine.sampling import Sampling
from statewell.errors import RequestError, StatewellError

# Halves make ties common; the extremes are what a diverged model gives.
SCORES = st.one_of(st.integers(-8, 8).map(lambda n: n / 2), st.floats(-60, 60), st.sampled_from([-1e30, 1e30]))
LOGITS = st.lists(SCORES, min_size=1, max_size=40).map(lambda x: torch.tensor(x, dtype=torch.float64))
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([1e-320, 1e-6, 0.3, 1.0, 2.5, 1e308]),
    top_k=st.none() | st.integers(1, 50),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 1 - 1e-12, 1.0]),
    min_p=st.sampled_from([0.0, 1e-6, 0.1, 0.5, 0.999]),
)


def renormalised(p: list[float]) -> list[float]:
    total = math.fsum(p)
    return [x / total for x in p]


def by_definition(logits: list[float], sampling: Sampling) -> list[float]:
    """The filters one after the other, in plain Python."""
    largest = max(logits)
    p = renormalised([math.exp((x - largest) / sampling.temperature) for x in logits])
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if sampling.top_k is not None:
        kept = set(order[: sampling.top_k])
        p = renormalised([x if i in kept else 0.0 for i, x in enumerate(p)])
    if sampling.top_p < 1:
        kept, total = set(), 0.0
        for i in order:
            if total >= sampling.top_p:
                break
            kept.add(i)
            total += p[i]
        p = renormalised([x if i in kept else 0.0 for i, x in enumerate(p)])
    if sampling.min_p > 0:
        least = sampling.min_p * max(p)
        p = renormalised([x if x >= least else 0.0 for x in p])
    return p


@given(LOGITS, SAMPLINGS)
def test_probabilities_are_the_definitions_and_sum_to_one(logits, sampling):
    p = probabilities(logits, sampling)
    assert p.shape == logits.shape
    assert p.dtype == torch.float64
    assert abs(p.sum().item() - 1) <= 1e-12
    expected = torch.tensor(by_definition(logits.tolist(), sampling), dtype=torch.float64)
    # A sum that meets top_p to the last bit may fall on either side; then one token more or less is right.
    if sampling.top_p in (1.0, 1e-9):
        assert torch.equal(p > 0, expected > 0)
        torch.testing.assert_close(p, expected, rtol=1e-12, atol=1e-300)
    else:
        assert abs(int((p > 0).sum()) - int((expected > 0).sum())) <= 1


@given(LOGITS, st.integers(1, 50))
def test_top_k_keeps_exactly_the_k_likeliest_and_the_lowest_ids_among_equals(logits, top_k):
    kept = probabilities(logits, Sampling(temperature=1e4, top_k=top_k)).nonzero().flatten().tolist()
    scores = (logits - logits.max()).div(1e4).exp()
    order = sorted(range(len(logits)), key=lambda i: (-scores[i].item(), i))
    assert kept == sorted(i for i in order[:top_k] if scores[i] > 0)


@given(LOGITS, st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_set_that_reaches_it(logits, top_p):
    whole = probabilities(logits, Sampling(temperature=1.0))
    kept = probabilities(logits, Sampling(temperature=1.0, top_p=top_p)) > 0
    held = whole[kept]
    assert held.sum() >= top_p - 1e-12
    assert held.sum() - held.min() < top_p + 1e-12
    if not kept.all():
        assert held.min() >= whole[~kept].max()


@given(LOGITS, st.floats(0.01, 0.99))
def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest(logits, min_p):
    whole = probabilities(logits, Sampling(temperature=1.0))
    kept = probabilities(logits, Sampling(temperature=1.0, min_p=min_p)) > 0
    assert torch.equal(kept, whole >= min_p * whole.max())


@given(LOGITS)
def test_greedy_takes_the_lowest_id_among_the_largest(logits):
    assert greedy(logits) == logits.tolist().index(max(logits.tolist()))
    assert sample(logits, Sampling(temperature=0), torch.Generator()) == greedy(logits)


# Sums of these are exact, so that meeting a limit to the last bit can be told from missing it.
EXACT = torch.tensor([0.125, 0.5, 0.125, 0.25], dtype=torch.float64)


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, [1]), (0.501, [1, 3]), (0.75, [1, 3]), (0.76, [0, 1, 3])])
def test_a_sum_that_meets_top_p_exactly_is_enough(top_p, kept):
    assert top_p_mask(EXACT, top_p).nonzero().flatten().tolist() == kept


def test_a_token_exactly_as_likely_as_min_p_asks_is_kept():
    assert min_p_mask(EXACT, 0.5).nonzero().flatten().tolist() == [1, 3]
    assert min_p_mask(EXACT, 0.25).all()


def test_the_lowest_ids_among_many_equals_are_kept():
    even = torch.full((4096,), 1 / 4096, dtype=torch.float64)
    assert top_k_mask(even, 5).nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
    assert top_p_mask(even, 3 / 4096).nonzero().flatten().tolist() == [0, 1, 2]


def test_greedy_takes_the_lowest_id_in_a_large_vocabulary_of_equals():
    logits = torch.zeros(200_000)
    logits[[70_001, 90_000, 199_999]] = 1.0
    assert greedy(logits) == 70_001


@given(LOGITS, SAMPLINGS, st.integers(0, 2**63 - 1))
def test_the_same_seed_draws_the_same_tokens_and_none_that_was_filtered_out(logits, sampling, seed):
    first, second = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    tokens = [sample(logits, sampling, first) for _ in range(5)]
    assert tokens == [sample(logits, sampling, second) for _ in range(5)]
    assert (probabilities(logits, sampling)[tokens] > 0).all()


def test_draws_follow_the_probabilities():
    p = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    counts = torch.bincount(torch.tensor([draw(p, generator) for _ in range(20_000)]), minlength=4) / 20_000
    # four standard deviations of a fraction of 20,000
    torch.testing.assert_close(counts.double(), p, rtol=0, atol=4 * (0.25 / 20_000) ** 0.5)


def test_a_draw_at_the_very_top_never_leaves_the_kept_tokens(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(1.0, dtype=torch.float64))
    assert draw(torch.tensor([0.4, 0.6, 0.0], dtype=torch.float64), torch.Generator()) == 1


def test_a_draw_at_the_very_bottom_skips_tokens_without_probability(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(0.0, dtype=torch.float64))
    assert draw(torch.tensor([0.0, 0.4, 0.6], dtype=torch.float64), torch.Generator()) == 1


def test_a_token_takes_one_number_whatever_the_vocabulary():
    ahead, reference = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    sample(torch.randn(50, generator=torch.Generator().manual_seed(0)), Sampling(temperature=1.0), ahead)
    torch.rand((), generator=reference, dtype=torch.float64)
    assert torch.equal(ahead.get_state(), reference.get_state())


def test_excluded_tokens_are_never_chosen():
    logits = torch.tensor([-math.inf, 2.0, -math.inf, 1.0])
    p = probabilities(logits, Sampling(temperature=1.0))
    assert p.nonzero().flatten().tolist() == [1, 3]
    assert greedy(logits) == 1


@pytest.mark.parametrize("logits", [[0.0, math.nan], [math.inf, 0.0], [-math.inf, -math.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_that_are_no_numbers_are_refused(logits, temperature):
    with pytest.raises(StatewellError, match="not a finite number"):
        sample(torch.tensor(logits), Sampling(temperature=temperature), torch.Generator())


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("temperature", -0.1, "0 or more"),
        ("temperature", math.inf, "finite"),
        ("temperature", math.nan, "0 or more"),
        ("top_k", 0, "1 or more"),
        ("top_p", 0.0, "above 0"),
        ("top_p", 1.1, "at most 1"),
        ("top_p", math.nan, "above 0"),
        ("min_p", -0.1, "0 or more"),
        ("min_p", 1.0, "below 1"),
        ("seed", -1, "from 0"),
        ("seed", 2**63, "from 0"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_value_and_the_limit(name, value, limit):
    with pytest.raises(RequestError, match=limit) as refusal:
        Sampling(**{name: value})
    assert f"{name} is {value}" in str(refusal.value)
