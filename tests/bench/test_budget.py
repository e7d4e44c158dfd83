"""Tokens for everyone alike, whether tokens or minutes were asked for."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from statewell.bench.budget import CompareRequest, affordable_steps, train_config
from statewell.bench.match import choose
from statewell.config.run import TrainConfig
from statewell.errors import RequestError

PAIR = choose(["gpt2", "linear_attention"], "nano", "active").configs
TINY_STEP = TrainConfig(rows=1, length=4)


def one_second_steps():
    return itertools.count(0.0, 1.0).__next__


def test_quick_and_default_train_at_least_what_they_promise():
    quick = train_config(CompareRequest(quick=True), PAIR)
    full = train_config(CompareRequest(), PAIR)
    assert quick.steps * quick.tokens_per_step >= 200_000
    assert full.steps * full.tokens_per_step >= 1_000_000


def test_minutes_become_the_same_steps_for_all_runs():
    # two architectures, three seeds, one second a step: 6 seconds for a step of everyone
    assert affordable_steps(PAIR, TINY_STEP, seeds=3, minutes=4, clock=one_second_steps()) == int(0.75 * 240 / 6)


def test_too_few_minutes_are_refused_with_the_least_that_is_enough():
    with pytest.raises(RequestError, match=r"--minutes 0.1 is enough for 2 steps each .* --minutes 0.9"):
        affordable_steps(PAIR, TINY_STEP, seeds=1, minutes=0.1, clock=one_second_steps())


def test_tokens_settled_earlier_are_taken_without_timing_again():
    made = train_config(CompareRequest(minutes=1e-9), PAIR, tokens=51_200)
    assert made.steps * made.tokens_per_step == 51_200
    assert made.minutes is None


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"seeds": 0}, "--seeds is 0"),
        ({"minutes": 0.0}, "--minutes is 0"),
        ({"minutes": float("nan")}, "--minutes is nan"),
        ({"quick": True, "minutes": 1.0}, "leave one of them out"),
    ],
    ids=str,
)
def test_requests_that_cannot_be_are_refused(wrong, named):
    with pytest.raises(RequestError, match=named):
        CompareRequest(**wrong)


def test_the_held_out_curve_has_about_ten_points_however_short_the_run():
    for tokens in (4_096, 204_800, 1_024_000):
        made = train_config(CompareRequest(), PAIR, tokens=tokens)
        assert replace(made).eval_every >= 1
        assert made.steps // made.eval_every in range(4, 16)
