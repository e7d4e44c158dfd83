"""The real `openai` client against a running server: what its users do, and what they get back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import openai
import pytest
import torch
from openai import OpenAI

from statewell.engine.engine import Engine
from statewell.engine.generate import generate
from statewell.engine.sampling import Sampling
from tests.serve.live import Live, Scripted, config_in, live

NAME = "gated_deltanet:nano"
HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def client(server: Live) -> Iterator[OpenAI]:
    # every such client sends a key; without one set here it means nothing
    with OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def test_a_completion_is_what_the_model_says_alone(client, model):
    alone = "".join(e.text for e in generate(model, "def main(", max_tokens=9, sampling=Sampling(temperature=0)))
    answer = client.completions.create(model=NAME, prompt="def main(", max_tokens=9, temperature=0)
    assert answer.choices[0].text == alone
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (9, 9, 18)


def test_chat_streams_the_text_it_gives_whole_with_usage_at_the_end(client):
    asked = {"model": NAME, "messages": HELLO, "max_tokens": 20, "temperature": 1, "seed": 5, "n": 2}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    for place in range(2):
        mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == place]
        assert mine[0].delta.role == "assistant"
        assert "".join(c.delta.content or "" for c in mine) == whole.choices[place].message.content
        assert [c.finish_reason for c in mine if c.finish_reason] == [whole.choices[place].finish_reason]
    assert whole.choices[0].message.content != whole.choices[1].message.content
    assert chunks[-1].usage.completion_tokens == 40
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_second_turn_reuses_the_first_and_says_so(client):
    first = client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=8, temperature=0)
    reply = {"role": "assistant", "content": first.choices[0].message.content}
    asked = [*HELLO, reply, {"role": "user", "content": "and now?"}]
    second = client.chat.completions.create(model=NAME, messages=asked, max_tokens=2, temperature=0)
    usage = second.usage.model_dump()
    reused = usage["prompt_tokens_details"]["cached_tokens"]
    assert usage["statewell"]["reused"] == reused >= first.usage.prompt_tokens
    other = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "Other"}], max_tokens=1, temperature=0
    )
    assert other.usage.model_dump()["statewell"]["missed"].startswith(("diverged at token 6", "no state at token 6"))


def test_chat_logprobs_name_every_token_and_its_rivals(client):
    answer = client.chat.completions.create(
        model=NAME, messages=HELLO, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == 6
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(top.logprob for top in token.top_logprobs) <= 0
        assert bytes(token.bytes).decode(errors="replace") in (token.token, "�")


def test_echo_with_logprobs_scores_the_prompt(client, model):
    ids = list("naïve".encode())
    answer = client.completions.create(model=NAME, prompt=ids, max_tokens=1, echo=True, logprobs=1, temperature=0)
    scores = answer.choices[0].logprobs
    assert answer.choices[0].text.startswith("naïve")
    assert len(scores.tokens) == len(ids) + 1
    assert scores.token_logprobs[0] is None
    assert scores.top_logprobs[0] is None
    assert scores.tokens[2:4] == ["bytes:\\xc3", "bytes:\\xaf"]
    assert scores.text_offset[:6] == [0, 1, 2, 2, 3, 4]

    exact = model(torch.tensor([ids]))[0].detach().double().log_softmax(-1)
    for place in range(1, len(ids)):
        assert scores.token_logprobs[place] == pytest.approx(float(exact[place - 1, ids[place]]), abs=1e-5)
    only = client.completions.create(model=NAME, prompt=ids, max_tokens=0, echo=True, logprobs=0)
    assert only.choices[0].logprobs.token_logprobs == scores.token_logprobs[:-1]
    assert only.choices[0].text == "naïve"


def test_several_prompts_of_several_choices_come_in_order(client):
    prompts = ["def a", "def b", "x"]
    asked = {"model": NAME, "max_tokens": 3, "temperature": 1, "seed": 2, "n": 2}
    together = client.completions.create(prompt=prompts, **asked)
    alone = [c.text for prompt in prompts for c in client.completions.create(prompt=prompt, **asked).choices]
    assert [choice.index for choice in together.choices] == list(range(6))
    assert [choice.text for choice in together.choices] == alone


def test_a_schema_is_followed_whatever_the_model_would_say(client):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "kind": {"enum": ["a", "b"]}},
        "required": ["n", "kind"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for seed in range(3):
        answer = client.chat.completions.create(
            model=NAME, messages=HELLO, max_tokens=300, temperature=1, seed=seed, response_format=form
        )
        assert answer.choices[0].finish_reason == "stop"
        said = json.loads(answer.choices[0].message.content)
        assert said["kind"] in ("a", "b")
        assert said["n"] in range(10)


def test_beams_and_penalties_pass_through(client):
    best = client.completions.create(
        model=NAME, prompt="import ", max_tokens=4, n=2, logprobs=0, extra_body={"beams": 4}
    )
    sums = [sum(choice.logprobs.token_logprobs) for choice in best.choices]
    assert sums[0] >= sums[1]
    biased = client.completions.create(model=NAME, prompt="a", max_tokens=4, temperature=0, logit_bias={"122": 100})
    assert biased.choices[0].text == "zzzz"


def test_errors_come_as_the_clients_own_exceptions(client):
    with pytest.raises(openai.NotFoundError, match=r"There is no model 'gpt-9' here, only gated_deltanet:nano"):
        client.completions.create(model="gpt-9", prompt="a")
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        client.completions.create(model=NAME, prompt="a", temperature=-1)
    assert caught.value.param == "temperature"
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="knows no tools"):
        client.chat.completions.create(model=NAME, messages=HELLO, tools=[WEATHER])


def test_models_are_listed_and_found(client):
    assert [card.id for card in client.models.list()] == [NAME]
    assert client.models.retrieve("gated-deltanet:nano").id == NAME


XTML = "<|open|>think<|sep|>"
REPLY = [
    "Let me", " look.", "<|close|>", "think", "<|sep|>", "<|open|>", "response", "<|sep|>", "One moment.", "<|close|>",
    "response", "<|sep|>", "<|open|>", "tools", "<|sep|>", "<|open|>", 'call tool="weather" index="1"', "<|sep|>",
    "<|open|>", 'argument key="city" type="string"', "<|sep|>", "Zürich", "<|close|>", "argument", "<|sep|>",
    "<|close|>", "call", "<|sep|>", "<|close|>", "tools", "<|sep|>", "<|end_of_msg|>",
]  # fmt: skip


@pytest.fixture(scope="module")
def talker(speaker, tmp_path_factory) -> Iterator[OpenAI]:
    """A client of a K3 that says REPLY to everything."""
    tokenizer = speaker.tokenizer
    says = [
        token
        for piece in REPLY
        for token in ([tokenizer.token_id(piece)] if piece in tokenizer.controls else tokenizer.encode(piece))
    ]
    config = config_in(tmp_path_factory.mktemp("k3"))
    with (
        live(speaker, config, wrap=lambda served: replace(served, service=Scripted(served.service, says))) as running,
        OpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0) as made,
    ):
        yield made


def test_reasoning_and_tool_calls_come_apart_whole(talker):
    answer = talker.chat.completions.create(
        model="kimi_k3:nano", messages=HELLO, tools=[WEATHER], max_tokens=200, tool_choice="auto"
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "One moment."
    assert choice.message.reasoning_content == "Let me look."
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Zürich"}
    # and the conversation goes on with its result
    following = [
        *HELLO,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "9C"},
    ]
    again = talker.chat.completions.create(model="kimi_k3:nano", messages=following, tools=[WEATHER], max_tokens=1)
    assert again.usage.prompt_tokens > answer.usage.prompt_tokens
    # in the tokens it was said in: all of the first turn is there but its reasoning's end, which is written anew
    assert again.usage.model_dump()["statewell"]["reused"] >= answer.usage.prompt_tokens


def test_reasoning_and_tool_calls_come_apart_while_streaming(talker):
    chunks = talker.chat.completions.create(
        model="kimi_k3:nano", messages=HELLO, tools=[WEATHER], max_tokens=200, stream=True
    )
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "One moment."
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Let me look."
    (call,) = [call for delta in deltas for call in delta.tool_calls or ()]
    assert (call.index, call.function.name) == (0, "weather")


def test_an_engine_that_breaks_ends_every_request_and_health_says_so(model, tmp_path, monkeypatch):
    with live(model, config_in(tmp_path)) as running, running.client() as http:
        monkeypatch.setattr(Engine, "step", lambda self: 1 / 0)
        answer = http.post("/v1/completions", json={"model": NAME, "prompt": "a"})
        assert answer.status_code == 500
        assert answer.json()["error"]["message"] == "The engine has stopped; the server has to be started again."
        assert running.served.service.broken
        monkeypatch.undo()
    assert "ZeroDivisionError" not in answer.text
