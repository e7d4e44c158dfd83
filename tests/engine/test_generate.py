"""The loop around a model, on a stand-in that says what it is told."""

from __future__ import annotations

import time

import pytest
import torch

from statewell.engine.generate import generate
from statewell.engine.sampling import Sampling
from statewell.errors import DataError, LimitError, RequestError
from statewell.text import ByteTokenizer, Specials
from tests.engine.standin import StandIn

GREEDY = Sampling(temperature=0)


def saying(text: str, prompt: str = "go", context: int | None = None) -> StandIn:
    model = StandIn(text.encode(), context)
    model.prompt_length = max(1, len(prompt.encode()))
    return model


def test_every_event_is_one_token_and_the_text_is_whole():
    model = saying("né €!")
    events = list(generate(model, "go", max_tokens=8, sampling=GREEDY))
    assert [event.token for event in events] == list("né €!".encode())
    assert [event.text for event in events] == ["n", "", "é", " ", "", "", "€", "!"]
    assert [event.finish_reason for event in events] == [None] * 7 + ["length"]
    assert [event.statistics is None for event in events] == [True] * 7 + [False]


def test_a_character_unfinished_at_the_end_is_shown_as_replaced():
    event = next(generate(saying("é"), "go", max_tokens=1, sampling=GREEDY))
    assert event.text == "\ufffd"


def test_the_memory_takes_in_all_but_the_last_token_and_the_figures_say_so():
    model = saying("abcdef")
    last = list(generate(model, "go", max_tokens=6, sampling=GREEDY))[-1]
    assert bytes(model.memories[0].ids) == b"goabcde"
    assert last.statistics.tokens == 6
    assert last.statistics.prompt_tokens == 2
    assert last.statistics.used_bytes == 7
    assert last.statistics.reserved_bytes == 128
    assert last.statistics.dtypes == ("bf16",)
    assert last.statistics.tokens_per_s > 0
    assert last.statistics.prefill_tokens_per_s > 0


def test_one_token_alone_has_no_decode_speed():
    last = list(generate(saying("a"), "go", max_tokens=1, sampling=GREEDY))[-1]
    assert last.statistics.tokens_per_s is None


def test_a_long_prompt_goes_in_by_pieces():
    model = saying("x", "p" * 1300)
    list(generate(model, "p" * 1300, max_tokens=2, sampling=GREEDY))
    assert model.memories[0].pieces == [512, 512, 276, 1]


def test_a_stop_string_across_tokens_ends_the_text_before_it():
    events = list(generate(saying("one END two"), "go", sampling=GREEDY, stop=["END"]))
    assert "".join(event.text for event in events) == "one "
    assert events[-1].finish_reason == "stop"
    assert events[-1].statistics.tokens == len("one END")


def test_one_stop_string_may_be_given_bare():
    events = list(generate(saying("one END two"), "go", sampling=GREEDY, stop="END"))
    assert "".join(event.text for event in events) == "one "


def test_text_held_for_a_stop_string_comes_out_when_the_tokens_run_out():
    events = list(generate(saying("one EN"), "go", max_tokens=6, sampling=GREEDY, stop=["END"]))
    assert "".join(event.text for event in events) == "one EN"
    assert events[-1].finish_reason == "length"


def test_a_stop_string_settled_only_at_the_end_is_a_stop():
    # "bc" has ended but might lie inside "abcd" until no token can follow
    events = list(generate(saying("abc"), "go", max_tokens=3, sampling=GREEDY, stop=["bc", "abcd"]))
    assert "".join(event.text for event in events) == "a"
    assert events[-1].finish_reason == "stop"


def test_the_context_ends_the_text_after_the_last_token_the_model_can_give():
    model = saying("abcdefgh", context=6)
    events = list(generate(model, "go", sampling=GREEDY))
    assert "".join(event.text for event in events) == "abcde"
    assert events[-1].finish_reason == "context"
    assert int(model.memories[0].lengths[0]) == 6


def test_a_prompt_as_long_as_the_context_still_gives_one_token():
    events = list(generate(saying("abc", context=2), "go", sampling=GREEDY))
    assert [(event.text, event.finish_reason) for event in events] == [("a", "context")]


def test_a_prompt_past_the_context_is_refused_by_the_call_itself():
    with pytest.raises(LimitError, match=r"5 tokens; stand-in holds at most 4: shorten it by 1"):
        generate(saying("x", context=4), "hello")


def test_an_empty_prompt_starts_from_the_separator():
    model = saying("ab", "")
    events = list(generate(model, "", max_tokens=2, sampling=GREEDY))
    assert "".join(event.text for event in events) == "ab"
    assert model.memories[0].ids == [0, ord("a")]


def test_a_given_memory_is_continued():
    model = saying("abcdef")
    memory = model.new_memory(1)
    first = list(generate(model, "go", max_tokens=3, sampling=GREEDY, memory=memory))
    assert memory.ids == list(b"goab")
    second = list(generate(model, [first[-1].token], max_tokens=3, sampling=GREEDY, memory=memory))
    assert "".join(event.text for event in [*first, *second]) == "abcdef"


def test_a_given_memory_counts_against_the_context():
    model = saying("abcdef", context=6)
    memory = model.new_memory(1)
    list(generate(model, "go", max_tokens=3, sampling=GREEDY, memory=memory))
    with pytest.raises(LimitError, match="after the 4 already in memory"):
        generate(model, "cde", memory=memory)
    assert int(memory.lengths[0]) == 4


def test_a_memory_that_generate_cannot_continue_is_refused():
    model = saying("x")
    with pytest.raises(RequestError, match="2 rows"):
        generate(model, "go", memory=model.new_memory(2))
    memory = model.new_memory(1)
    memory.lengths += 1
    with pytest.raises(RequestError, match="continue with the last token"):
        generate(model, "", memory=memory)


def test_the_same_seed_gives_the_same_text_and_another_seed_another():
    def text(seed: int) -> list[int]:
        events = generate(StandIn(b"x", even=True), "go", sampling=Sampling(temperature=1.0, seed=seed))
        return [event.token for event in events]

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_no_mode_leaks_to_the_reader_between_tokens():
    model = saying("abc")
    for _ in generate(model, "go", max_tokens=3):
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
    assert set(model.modes) == {(True, False)}


def test_a_memory_of_the_callers_never_holds_inference_tensors():
    model = saying("abc")
    list(generate(model, "go", max_tokens=3, memory=model.new_memory(1)))
    assert set(model.modes) == {(False, False)}


def test_the_speed_leaves_out_the_readers_time(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    statistics = None
    for event in generate(saying("abcd"), "go", max_tokens=4, sampling=GREEDY):
        statistics = event.statistics
        next(clock)  # the reader's own second
    assert statistics.tokens_per_s == 1.0
    assert statistics.prefill_tokens_per_s == 2.0


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_no_tokens_at_all_is_refused(max_tokens):
    with pytest.raises(RequestError, match=f"max_tokens is {max_tokens}"):
        generate(saying("x"), "go", max_tokens=max_tokens)


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(RequestError, match="Token id 256"):
        generate(saying("x"), [1, 256])


def test_a_model_without_a_tokenizer_is_refused():
    model = saying("x")
    model.tokenizer = None
    with pytest.raises(RequestError, match="no tokenizer"):
        generate(model, [1, 2])


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(DataError, match="surrogate"):
        generate(saying("x"), "a\ud800")


class Opening(ByteTokenizer):
    """Bytes whose prompts start with `>` and whose text is over at `.`."""

    def __init__(self) -> None:
        object.__setattr__(self, "specials", Specials(separator=0, opening=(ord(">"),), ends=frozenset({ord(".")})))


def test_text_into_an_empty_memory_starts_with_the_tokenizers_opening():
    model = saying("abc", ">go")
    model.tokenizer = Opening()
    memory = model.new_memory(rows=1)
    list(generate(model, "go", max_tokens=2, sampling=GREEDY, memory=memory))
    list(generate(model, "on", max_tokens=1, sampling=GREEDY, memory=memory))
    list(generate(model, [7], max_tokens=1, sampling=GREEDY))
    assert bytes(memory.ids) == b">goaon"
    assert model.memories[1].ids == [7]


def test_text_is_over_at_an_end_of_the_tokenizer_which_is_not_shown():
    model = saying("ab.cd", ">go")
    model.tokenizer = Opening()
    events = list(generate(model, "go", max_tokens=9, sampling=GREEDY))
    assert "".join(event.text for event in events) == "ab"
    assert (events[-1].token, events[-1].finish_reason, events[-1].statistics.tokens) == (ord("."), "stop", 3)
