"""Many requests together: each as if it ran alone, in memory that is counted to the byte and comes back."""

from __future__ import annotations

import random

import pytest
import torch

import statewell as sw
from statewell.architectures import ARCHITECTURES
from statewell.config.engine import EngineConfig
from statewell.engine.engine import Engine
from statewell.engine.request import Request
from statewell.engine.sampling import Sampling
from statewell.errors import LimitError, RequestError
from statewell.models import LanguageModel
from tests.engine.alone import Turns, alone, run_all, text, tokens

every_architecture = pytest.mark.parametrize("arch", ARCHITECTURES)
GREEDY = Sampling(temperature=0)


def exact(arch: str) -> LanguageModel:
    return sw.build(f"{arch}:nano", seed=3).double()


@every_architecture
def test_random_joins_leaves_and_cancels_give_what_each_gives_alone_in_float64(arch: str):
    model, chance = exact(arch), random.Random(arch)
    engine = Engine(model, EngineConfig(rows=5, prefill_chunk=40, state_every=32))
    empty, events, requests = engine.memory.bytes(), [], {}
    shared = text(70, 1)
    for turn in range(14):
        prompt = shared[: chance.randint(1, 70)] + text(chance.randint(1, 90), turn)
        request = Request(
            prompt=prompt,
            max_tokens=chance.randint(1, 12),
            sampling=chance.choice([GREEDY, Sampling(temperature=1.2, seed=turn, top_p=0.9), Sampling(seed=turn)]),
            draft=chance.choice([0, 0, 3]),
        )
        requests[engine.submit(request)] = request
        for _ in range(chance.randint(0, 4)):
            events += engine.step()
        if chance.random() < 0.2:
            gone = chance.choice(list(requests))
            engine.cancel(gone)
            requests.pop(gone)
    events += run_all(engine)
    for number, request in requests.items():
        assert tokens(events, number) == alone(model, request), request
    engine.reuse.clear()
    assert engine.memory.bytes() == empty
    assert engine.memory.rows_in_use == 0


@every_architecture
@pytest.mark.parametrize("length", [127, 128, 129, 200])
def test_a_second_turn_reuses_the_first_and_says_what_a_cold_run_says(arch: str, length: int):
    model = exact(arch)
    engine = Engine(model)
    first = Request(prompt=text(length, 1), max_tokens=6, sampling=GREEDY)
    number = engine.submit(first)
    said = tokens(run_all(engine), number)
    second = Request(prompt=(*first.prompt, *said, *text(16, 2)), max_tokens=6, sampling=GREEDY)
    number = engine.submit(second)
    events = run_all(engine)
    assert tokens(events, number) == alone(model, second)
    usage = events[-1].usage
    assert usage is not None
    # all but the last token that was said was taken in
    assert usage.reuse.tokens == length + 5
    assert usage.reuse.missed == f"nothing held past token {length + 5}"


def test_bytes_stay_under_the_budget_at_every_step_and_who_does_not_fit_waits():
    model = exact("gpt2")
    page = model.new_paged_memory(1).page_bytes
    engine = Engine(model, EngineConfig(rows=8, memory_budget=5 * page, prefill_chunk=64))
    numbers = [engine.submit(Request(prompt=text(100 + n, n), max_tokens=40, sampling=GREEDY)) for n in range(6)]
    events, most = [], 0
    while engine.busy:
        events += engine.step()
        assert engine.memory.bytes().reserved <= 5 * page
        most = max(most, engine.gauges().running)
    assert most == 2  # of two pages each
    assert all(len(tokens(events, number)) == 40 for number in numbers)


def test_a_higher_priority_sets_a_lower_one_aside_and_nothing_is_read_twice():
    model = exact("kimi_k3")
    engine = Engine(model, EngineConfig(rows=1))
    low = Request(prompt=text(60, 1), max_tokens=12, sampling=GREEDY)
    high = Request(prompt=text(9, 2), max_tokens=4, sampling=GREEDY, priority=1)
    first = engine.submit(low)
    events = [*engine.step(), *engine.step(), *engine.step()]
    second = engine.submit(high)
    events += engine.step()
    assert engine.gauges().set_aside == 1
    events += run_all(engine)
    order = [event.request for event in events if event.finish is not None]
    assert order == [second, first]
    assert tokens(events, first) == alone(model, low)
    assert tokens(events, second) == alone(model, high)


def test_a_long_prompt_holds_a_running_one_up_by_one_chunk_at_a_time():
    engine = Engine(exact("gated_deltanet"), EngineConfig(rows=2, prefill_chunk=16, state_every=16))
    running = engine.submit(Request(prompt=text(4, 1), max_tokens=30, sampling=GREEDY))
    engine.step()
    long = engine.submit(Request(prompt=text(160, 2), max_tokens=1, sampling=GREEDY))
    steps = []
    while not any(event.request == long for event in engine.step()):
        steps.append(engine.gauges().running)
    assert len(steps) == 9
    assert len(tokens(run_all(engine), running)) == 30 - 1 - 10


def test_cancelling_frees_the_memory_at_once():
    engine = Engine(exact("kimi_linear"))
    before = engine.memory.bytes()
    number = engine.submit(Request(prompt=text(50, 1), max_tokens=50))
    engine.step()
    assert engine.cancel(number)
    engine.reuse.clear()
    assert engine.memory.bytes() == before
    (event,) = engine.step()
    assert (event.finish, event.token) == ("cancelled", None)
    assert not engine.cancel(number)
    assert not engine.busy


def test_choices_share_the_prompt_and_differ_by_their_seed():
    model = exact("kimi_k3")
    engine = Engine(model)
    request = Request(prompt=text(40, 1), max_tokens=8, choices=3, sampling=Sampling(seed=11, temperature=1))
    number = engine.submit(request)
    events = run_all(engine)
    for place in range(3):
        single = Request(prompt=request.prompt, max_tokens=8, sampling=Sampling(seed=11 + place, temperature=1))
        assert tokens(events, number, place) == alone(model, single)
    assert events[-1].usage is not None
    assert events[-1].usage.generated == 24


@every_architecture
def test_guessed_tokens_change_nothing(arch: str):
    model = exact(arch)
    prompt = text(12, 5) * 4
    for sampling in (GREEDY, Sampling(temperature=0.3, seed=2)):
        plain = Request(prompt=prompt, max_tokens=24, sampling=sampling)
        engine = Engine(model)
        number = engine.submit(Request(prompt=prompt, max_tokens=24, sampling=sampling, draft=4))
        assert tokens(run_all(engine), number) == alone(model, plain)


def test_logprobs_and_the_prompts_own_are_the_models():
    model = exact("gated_deltanet")
    request = Request(prompt=text(30, 1), max_tokens=3, sampling=GREEDY, logprobs=2, echo=True)
    engine = Engine(model, EngineConfig(prefill_chunk=7))
    engine.submit(request)
    events = run_all(engine)
    ids = [*request.prompt, *(event.token for event in events)]
    exact_scores = model(torch.tensor([ids]))[0].detach().log_softmax(-1)
    scored = events[0].prompt_logprobs
    assert scored is not None
    assert scored[0] is None
    told = [*scored[1:], *(event.logprobs for event in events)]
    for n, said in enumerate(told):
        assert said is not None
        assert said.token == pytest.approx(float(exact_scores[n, ids[n + 1]]), rel=1e-9)
        assert said.top[0][0] == int(exact_scores[n].argmax())
        assert len(said.top) == 2


def test_scoring_alone_needs_no_new_token():
    engine = Engine(exact("gpt2"))
    engine.submit(Request(prompt=text(30, 1), max_tokens=0, echo=True, logprobs=0))
    (event,) = run_all(engine)
    assert event.token is None
    assert event.finish == "length"
    assert event.prompt_logprobs is not None
    assert len(event.prompt_logprobs) == 30


def test_beams_find_a_likelier_text_than_greedy_and_its_probability_is_right():
    model = exact("gated_deltanet")
    engine = Engine(model)
    before = engine.memory.bytes()
    prompt = text(20, 3)
    number = engine.submit(Request(prompt=prompt, max_tokens=6, beams=4, choices=2, logprobs=0))
    events = run_all(engine)

    def likelihood(made: list[int]) -> float:
        scores = model(torch.tensor([[*prompt, *made]]))[0].detach().log_softmax(-1)
        return sum(float(scores[len(prompt) - 1 + n, token]) for n, token in enumerate(made))

    best = tokens(events, number)
    told = sum(event.logprobs.token for event in events if event.choice == 0 and event.logprobs is not None)
    assert told == pytest.approx(likelihood(best), rel=1e-9)
    greedy = alone(model, Request(prompt=prompt, max_tokens=6, sampling=GREEDY))
    assert likelihood(best) >= likelihood(greedy) - 1e-9
    assert likelihood(best) >= likelihood(tokens(events, number, 1))
    engine.reuse.clear()
    assert engine.memory.bytes() == before


def test_a_model_with_a_limit_stops_there():
    model = exact("gpt2")
    limit = model.config.context
    assert limit is not None
    engine = Engine(model, EngineConfig(prefill_chunk=4096))
    engine.submit(Request(prompt=text(limit - 2, 1), max_tokens=50, sampling=GREEDY))
    events = run_all(engine)
    assert len(events) == 3
    assert events[-1].finish == "context"
    with pytest.raises(LimitError, match="shorten it by 1"):
        engine.submit(Request(prompt=text(limit + 1, 1)))


def test_a_stop_token_ends_a_choice_and_is_told():
    model = exact("gpt2")
    request = Request(prompt=text(10, 1), max_tokens=20, sampling=GREEDY)
    said = alone(model, request)
    engine = Engine(model)
    engine.submit(Request(prompt=request.prompt, max_tokens=20, sampling=GREEDY, stop=frozenset(said[:1])))
    (event,) = run_all(engine)
    assert (event.token, event.finish) == (said[0], "stop")


@pytest.mark.parametrize("draft", [0, 4])
def test_every_choice_follows_a_constraint_of_its_own(draft: int):
    engine = Engine(exact("kimi_k3"))
    sampling = Sampling(temperature=1, seed=4)
    turns = Turns([(97, 98), (99,), (100, 101, 102)])
    prompt = text(12, 5) * 3
    request = Request(prompt=prompt, max_tokens=12, choices=3, sampling=sampling, constraint=turns, draft=draft)
    number = engine.submit(request)
    events = run_all(engine)
    said = [tokens(events, number, place) for place in range(3)]
    for each in said:
        assert all(token in Turns([(97, 98), (99,), (100, 101, 102)], n).allowed() for n, token in enumerate(each))
    assert len({tuple(each) for each in said}) > 1
    with pytest.raises(RequestError, match="2 beams under a constraint"):
        Request(prompt=(1,), beams=2, constraint=turns)


def test_a_choice_can_be_stopped_from_outside_while_the_others_go_on():
    engine = Engine(exact("gated_deltanet"))
    number = engine.submit(Request(prompt=text(9, 1), max_tokens=8, choices=2, sampling=Sampling(seed=1)))
    events = [*engine.step(), *engine.step()]
    assert engine.stop(number, 0)
    assert not engine.stop(number, 0)
    events += run_all(engine)
    assert [(e.choice, e.token) for e in events if e.finish == "stop"] == [(0, None)]
    assert len(tokens(events, number, 0)) < 8
    assert len(tokens(events, number, 1)) == 8
    assert events[-1].usage is not None
    assert not engine.busy
    # what it had said is there for the next turn
    following = engine.submit(Request(prompt=(*text(9, 1), *tokens(events, number, 0), 97), max_tokens=1))
    (event,) = [event for event in run_all(engine) if event.request == following]
    assert event.usage is not None
    assert event.usage.reuse.tokens >= 9


def test_scores_that_are_no_numbers_end_that_request_alone():
    model = exact("gpt2")
    with torch.no_grad():
        model.embedding.weight[7] = float("nan")
    engine = Engine(model)
    bad = engine.submit(Request(prompt=(7, 1, 2), max_tokens=3, sampling=GREEDY))
    searching = engine.submit(Request(prompt=(7, 1, 2), max_tokens=3, beams=2))
    events = run_all(engine)
    for number, message in ((bad, "not a finite number"), (searching, "scores are damaged")):
        (event,) = [event for event in events if event.request == number]
        assert event.finish == "error"
        assert event.error is not None
        assert message in event.error
    assert engine.memory.rows_in_use == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt": ()}, "holds no token"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"choices": 0}, "choices is 0"),
        ({"beams": 2, "choices": 3}, "3 choices of 2 beams"),
        ({"logprobs": 21}, "logprobs is 21"),
        ({"draft": -1}, "draft is -1"),
    ],
)
def test_impossible_requests_are_refused_in_a_sentence(wrong: dict, message: str):
    with pytest.raises(RequestError, match=message):
        Request(**{"prompt": (1, 2), **wrong})


def test_what_could_never_run_is_refused_at_once():
    model = exact("gpt2")
    page = model.new_paged_memory(1).page_bytes
    engine = Engine(model, EngineConfig(rows=2, memory_budget=2 * page))
    with pytest.raises(RequestError, match="Token id 256 is not in this model's vocabulary"):
        engine.submit(Request(prompt=(1, 256)))
    with pytest.raises(LimitError, match="3 conversations at a time, 2 is the most"):
        engine.submit(Request(prompt=(1,), choices=3))
    with pytest.raises(LimitError, match=r"1 x 300 tokens need .* lower max_tokens"):
        engine.submit(Request(prompt=text(100, 1), max_tokens=200))
    with pytest.raises(LimitError, match="fixed states of"):
        Engine(exact("kimi_k3"), EngineConfig(memory_budget=1000))
