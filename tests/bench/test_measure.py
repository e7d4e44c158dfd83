"""Speed and bytes of single steps: the right contexts, the right steps, and bytes that are really there."""

from __future__ import annotations

import pytest
import torch

from statewell import architectures
from statewell.bench import measure as module
from statewell.bench.measure import measure, planned_bytes
from statewell.errors import StatewellError
from statewell.models import build


def clock_of(durations):
    """A clock read before and after each of the given durations, with a second in between."""
    readings = [0.0]
    for duration in durations:
        readings += [readings[-1] + duration, readings[-1] + duration + 1]
    return iter(readings).__next__


@pytest.fixture(scope="module")
def gpt2():
    return build(architectures.resolve("gpt2:nano"), seed=0)


@pytest.mark.parametrize("arch", architectures.ARCHITECTURES)
def test_memory_measured_equals_memory_planned(arch):
    model = build(architectures.resolve(f"{arch}:nano"), seed=0)
    held = measure(model, contexts=(5, 130, 1_000), steps=2).bytes
    assert held == {context: planned_bytes(model.config, context) for context in (5, 130, 1_000)}


def test_bytes_that_differ_from_the_plan_are_an_error(gpt2, monkeypatch):
    monkeypatch.setattr(module, "planned_bytes", lambda config, context: 2048 * context + 1)
    with pytest.raises(StatewellError, match="was planned at 131,073"):
        measure(gpt2, contexts=(64,), steps=1)


def test_the_median_step_is_reported_and_warm_up_is_not(gpt2):
    warm_up = [50.0] * module.WARM_UP
    durations = [*warm_up, 3.0, 900.0, 5.0]
    measured = measure(gpt2, contexts=(64,), steps=3, rounds=1, clock=clock_of(durations))
    assert measured.times == [{"context": 64, "seconds": 5.0, "note": None}]
    assert measured.tokens_per_s == pytest.approx(0.2)


def test_rounds_take_turns_over_the_contexts(gpt2):
    warm_up = [50.0] * module.WARM_UP
    busy_round = [*warm_up, 100.0, *warm_up, 200.0]
    quiet_round = [*warm_up, 1.0, *warm_up, 2.0]
    clock = clock_of([*busy_round, *quiet_round, *quiet_round])
    times = measure(gpt2, contexts=(64, 128), steps=1, rounds=3, clock=clock).times
    assert [point["seconds"] for point in times] == [1.0, 2.0]


def test_the_last_step_fills_the_context_and_the_limit_can_be_reached(gpt2):
    measured = measure(gpt2, contexts=(1, 2, 1_024, 1_025), steps=3)
    assert [point["note"] for point in measured.times] == [None, None, None, "past its 1,024 positions"]
    assert sorted(measured.bytes) == [1, 2, 1_024]


def test_the_model_is_left_as_it_was(gpt2):
    before = {name: tensor.clone() for name, tensor in gpt2.state_dict().items()}
    state = torch.random.get_rng_state()
    gpt2.train()
    measure(gpt2, contexts=(8,), steps=2)
    assert gpt2.training
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in gpt2.state_dict().items())


def test_nothing_within_the_limit_gives_no_speed(gpt2):
    assert measure(gpt2, contexts=(4_096,), steps=2).tokens_per_s is None
