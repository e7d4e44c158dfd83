"""Penalties, bias, constraints and guesses: by hand on small numbers."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from statewell.engine.choosing import Chooser, choose, logprobs
from statewell.engine.draft import guess
from statewell.engine.sampler import sample
from statewell.engine.sampling import Sampling
from statewell.errors import RequestError, StatewellError
from tests.engine.alone import Turns


def test_penalties_and_bias_move_scores_as_their_formulas_say():
    logits = torch.tensor([2.0, -2.0, 1.0, 1.0, 0.0])
    sampling = Sampling(
        repetition_penalty=2, presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((4, 3.0), (0, -1.0))
    )
    chooser = Chooser(sampling, frozenset({0, 1}), said=Counter({2: 3}))
    # 0 and 1: in the prompt; 2: said three times; 0 and 4: biased
    assert chooser.scores(logits).tolist() == [2 / 2 - 1, -2 * 2, 1 / 2 - 0.5 - 0.75, 1, 3]
    assert logits.tolist() == [2, -2, 1, 1, 0]


def test_a_constraint_leaves_only_what_it_allows():
    chooser = Chooser(Sampling(temperature=0), frozenset(), constraint=Turns([(1, 3), (0,)]))
    scores = torch.tensor([9.0, 1.0, 8.0, 2.0])
    assert choose([scores], [chooser]) == [3]
    chooser.take(3)
    assert choose([scores], [chooser]) == [0]


def test_rows_are_chosen_together_as_each_alone():
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(1))
    settings = [Sampling(temperature=0), Sampling(seed=1), Sampling(top_k=3, seed=2), Sampling(temperature=0)]
    choosers = [Chooser(settings[n % 4], frozenset({1})) for n in range(9)]
    expected = [
        sample(row, settings[n % 4], Chooser(settings[n % 4], frozenset()).generator) for n, row in enumerate(logits)
    ]
    assert choose(list(logits), choosers) == expected


def test_the_lowest_id_wins_among_equals_and_no_number_is_an_error():
    greedy = Sampling(temperature=0)
    chosen = choose(
        [torch.tensor([1.0, 5.0, 5.0]), torch.tensor([1.0, float("nan"), 2.0])],
        [Chooser(greedy, frozenset()), Chooser(greedy, frozenset())],
    )
    assert chosen[0] == 1
    assert isinstance(chosen[1], StatewellError)


def test_logprobs_are_natural_and_the_likeliest_come_first():
    said = logprobs(torch.tensor([0.0, 1.0, 1.0]), 0, 2)
    total = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64).logsumexp(0)
    assert said.token == pytest.approx(-float(total))
    assert [token for token, _ in said.top] == [1, 2]


def test_a_guess_is_what_followed_the_longest_recurring_ending():
    assert guess([1, 2, 3, 9, 9, 1, 2, 3], 4) == [9, 9, 1, 2]
    assert guess([5, 1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]  # the latest place wins
    assert guess([1, 2, 3, 4], 4) == []
    assert guess([], 4) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"presence_penalty": 3}, "presence_penalty is 3"),
        ({"frequency_penalty": -3}, "frequency_penalty is -3"),
        ({"logit_bias": ((7, 101.0),)}, "logit bias of token 7 is 101"),
    ],
)
def test_values_out_of_range_are_refused(wrong: dict, message: str):
    with pytest.raises(RequestError, match=message):
        Sampling(**wrong)
