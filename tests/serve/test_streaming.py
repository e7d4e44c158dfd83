"""Text while it streams: characters whole, stop strings never shown, the pieces joined equal to the whole."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statewell.engine.request import TokenEvent
from statewell.serve.reading import ChatReader, TextReader
from statewell.text import ByteTokenizer
from statewell.text.plain_chat import PlainReader
from tests.serve.live import Scripted, config_in, live

NAME = "gated_deltanet:nano"
SAYS = "naïve 汉字 — 🎈 and\nUser: no END more"


def script(text: str) -> list[TokenEvent]:
    ids = list(text.encode())
    return [
        TokenEvent(request=0, choice=0, token=token, finish="length" if n == len(ids) - 1 else None)
        for n, token in enumerate(ids)
    ]


@given(
    text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    stop=st.lists(st.text(min_size=1, max_size=3), max_size=3),
)
def test_pieces_joined_are_the_text_before_the_first_stop_string(text: str, stop: list[str]):
    ends = [at for at in map(text.find, stop) if at >= 0]
    expected = text[: min(ends, default=len(text))]
    tokenizer = ByteTokenizer()
    for reader in (TextReader(tokenizer.decode_bytes, stop), ChatReader(PlainReader(tokenizer), stop)):
        parts = [reader.read(event) for event in script(text)]
        shown = "".join(part.content for part in parts)
        assert shown == expected if isinstance(reader, TextReader) else shown in (expected, expected.removeprefix(" "))
        assert parts[-1].finish == ("stop" if ends else "length")
        assert reader.over or not ends


@pytest.fixture(scope="module")
def scripted(model, tmp_path_factory):
    says = list(SAYS.encode())

    def wrap(served):
        return replace(served, service=Scripted(served.service, says))

    with live(model, config_in(tmp_path_factory.mktemp("s")), wrap=wrap) as running, running.client() as http:
        yield running, http


def streamed(http, path: str, body: dict) -> tuple[list[str], str | None]:
    pieces, finish = [], None
    with http.stream("POST", path, json={"model": NAME, "stream": True, **body}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    for line in lines[:-1]:
        for choice in json.loads(line)["choices"]:
            pieces.append(choice["text"] if "text" in choice else choice["delta"].get("content", ""))
            finish = choice["finish_reason"] or finish
    return pieces, finish


def test_a_stop_string_across_tokens_is_never_shown_and_ends_the_choice_at_once(scripted):
    running, http = scripted
    asked = {"prompt": "a", "max_tokens": len(SAYS.encode()), "stop": ["END", "字 x"]}
    pieces, finish = streamed(http, "/v1/completions", asked)
    assert "".join(pieces) == SAYS[: SAYS.index("END")]
    assert finish == "stop"
    assert all("\ufffd" not in piece for piece in pieces)
    whole = http.post("/v1/completions", json={"model": NAME, **asked}).json()
    assert whole["choices"][0]["text"] == "".join(pieces)
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == len(SAYS[: SAYS.index("END") + 3].encode())
    assert running.gauges().rows == 0


def test_a_plain_chat_ends_before_the_users_next_line(scripted):
    _, http = scripted
    messages = [{"role": "user", "content": "hi"}]
    pieces, finish = streamed(http, "/v1/chat/completions", {"messages": messages, "max_tokens": 60})
    assert "".join(pieces) == SAYS[: SAYS.index("\nUser:")]
    assert finish == "stop"


def test_a_text_cut_inside_a_character_says_so_at_its_end(scripted):
    _, http = scripted
    pieces, finish = streamed(http, "/v1/completions", {"prompt": "a", "max_tokens": 3})
    assert ("".join(pieces), finish) == ("na\ufffd", "length")
