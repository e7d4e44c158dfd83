"""Everything a client can get wrong: a clear 4xx in OpenAI's shape, nothing of the inside, nothing left behind."""

from __future__ import annotations

import json
import socket

import pytest

from statewell.config.engine import EngineConfig
from statewell.errors import RequestError
from statewell.serve.limits import Limits
from statewell.serve.security import Keys, read_keys, require_safe_host
from tests.serve.live import Live, config_in, empty, live

NAME = "gated_deltanet:nano"
JSON = {"content-type": "application/json"}
HI = [{"role": "user", "content": "hi"}]


def refused(answer, status: int, said: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert said in error["message"]
    assert not any(inside in answer.text for inside in ("Traceback", "/home", "/root", "site-packages", "statewell."))


def nested(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def schema(document: object) -> dict[str, object]:
    return {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {"schema": document}}}


TEXT = [
    ({"prompt": "a", "temperature": -1}, "temperature: Input should be greater than or equal to 0"),
    ({"prompt": "a", "temperature": "hot"}, "temperature"),
    ({"prompt": "a", "max_tokens": 10**9}, "max_tokens: Input should be less than or equal to 131072"),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens is 0"),
    ({"prompt": "a", "max_tokens": True}, "max_tokens"),
    ({"prompt": "a", "stop": ["x"] * 10_000}, "stop"),
    ({"prompt": "a", "stop": ""}, "stop"),
    ({"prompt": "a", "stop": ["x" * 300]}, "stop"),
    ({"prompt": "a", "n": 0}, "n: Input should be greater than or equal to 1"),
    ({"prompt": "a", "n": 129}, "n: Input should be less than or equal to 128"),
    ({"prompt": "a", "n": 5}, "5 conversations at a time, 4 is the most"),
    ({"prompt": ["a"] * 128, "n": 2}, "128 choices are the most"),
    ({"prompt": "a", "top_p": 0}, "top_p"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "seed": -1}, "seed"),
    ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"999": 1}}, "Token id 999 is not in this model's vocabulary"),
    ({"prompt": [256]}, "Token id 256 is not in this model's vocabulary"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": "\ud800"}, "half of a surrogate pair"),
    ({}, "prompt: Field required"),
    ({"prompt": "a", "best_off": 3}, "best_off: Extra inputs are not permitted"),
    ({"prompt": "a", "beams": 2, "n": 3}, "3 choices of 2 beams"),
    ({"prompt": "a", "model": "another"}, "There is no model 'another' here"),
]  # fmt: skip
CHAT = [
    ({"messages": []}, "messages: List should have at least 1 item"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content"),
    ({"messages": [{"role": "tool", "content": "9C", "tool_call_id": "a"}]}, "knows no tools"),
    ({"messages": HI, "top_logprobs": 2}, "top_logprobs needs logprobs"),
    (schema(nested(40)), "32 levels"),
    (schema({"type": "no"}), "cannot be followed"),
    (schema({"enum": ["x" * 70_000]}), "65,536 is the most"),
    ({"messages": HI, "response_format": {"type": "grammar"}}, "response_format"),
    ({"messages": HI, "tools": [{"type": "function", "function": {"name": "f", "p": nested(40)}}]}, "32 levels"),
    ({"messages": HI, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "none of the tools"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "said"), TEXT)
def test_a_wrong_completion_is_refused_with_the_reason(server: Live, body: dict, said: str):
    with server.client(**JSON) as http:
        raw = json.dumps({"model": NAME, **body})
        refused(http.post("/v1/completions", content=raw), 404 if "another" in raw else 400, said)


@pytest.mark.parametrize(("body", "said"), CHAT)
def test_a_wrong_chat_is_refused_with_the_reason(server: Live, body: dict, said: str):
    with server.client() as http:
        refused(http.post("/v1/chat/completions", json={"model": NAME, **body}), 400, said)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b'{"model": ', "not JSON"),
        (b"", "Field required"),
        (b"\xff\xfe{}", "not UTF-8: byte 0"),
        ('{"model": "a", "prompt": "a"}'.encode("utf-16"), "not UTF-8"),
        (b"[" * 100_000, ""),
        (b'{"model":"gated_deltanet:nano","prompt":"a","temperature":NaN}', "temperature"),
        (b'{"model":"gated_deltanet:nano","prompt":"a","seed":' + b"9" * 5000 + b"}", ""),
        (b"[]", ""),
        (b"null", ""),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(server: Live, raw: bytes, said: str):
    with server.client(**JSON) as http:
        refused(http.post("/v1/completions", content=raw), 400, said)


def test_a_body_has_to_be_json_and_small(server: Live):
    with server.client() as http:
        refused(http.post("/v1/completions", content=b"a=b"), 415, "application/json")
        refused(http.post("/v1/completions", data={"prompt": "a"}), 415, "application/json")
        gzip = {**JSON, "content-encoding": "gzip"}
        refused(http.post("/v1/completions", content=b"a", headers=gzip), 415, "compressed")
        latin = {"content-type": "application/json; charset=latin-1"}
        refused(http.post("/v1/completions", content=b"{}", headers=latin), 415, "UTF-8")
        refused(http.post("/v1/completions", content=b" " * (2**22 + 1), headers=JSON), 413, "4,194,304 is the most")
        pieces = iter([b" " * 2**21] * 3)
        refused(http.post("/v1/completions", content=pieces, headers=JSON), 413, "the most")
        refused(http.get("/nowhere"), 404, "no such route")
        refused(http.get("/v1/completions"), 405, "does not take this method")


def test_a_prompt_over_the_budget_or_the_models_limit_is_refused_before_anything_is_read(model, tmp_path):
    import statewell as sw

    gpt2 = sw.build("gpt2:nano", seed=0)
    page = gpt2.new_paged_memory(1).page_bytes
    tight = config_in(tmp_path, engine=EngineConfig(memory_budget=3 * page, rows=2))
    with live(gpt2, tight) as running, running.client() as http:
        long = {"model": "gpt2:nano", "prompt": "a" * 300, "max_tokens": 200}
        refused(http.post("/v1/completions", json=long), 400, "lower max_tokens")
        long = {"model": "gpt2:nano", "prompt": "a" * 5000, "max_tokens": 1}
        refused(http.post("/v1/completions", json=long), 400, "shorten it by")
        assert running.gauges().rows == 0


def test_only_local_hosts_and_pages_may_ask(server: Live):
    with server.client() as http:
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", ""):
            refused(http.get("/v1/models", headers={"host": host}), 403, "Host")
        for host in ("localhost", "LOCALHOST:80", "[::1]:8000", "127.0.0.1"):
            assert http.get("/v1/models", headers={"host": host}).status_code == 200
        for origin in ("https://evil.example", "null", "file://", "http://localhost.evil.example", "http://[x"):
            refused(http.get("/v1/models", headers={"origin": origin}), 403, "other sites")
        assert http.get("/v1/models", headers={"origin": "http://localhost:3000"}).status_code == 200


def test_a_key_opens_everything_but_health_and_owners_are_apart(model, tmp_path):
    file = tmp_path / "keys"
    file.write_text("first-key-of-sixteen\nsecond-key-of-sixteen\n")
    with live(model, config_in(tmp_path / "s"), read_keys(file)) as running, running.client() as http:
        for path in ("/v1/models", "/metrics", "/v1/sessions", "/openapi.json", "/nowhere"):
            refused(http.get(path), 401, "API key")
        for header in ("Bearer wrong", "Bearer", "Basic first-key-of-sixteen", "first-key-of-sixteen", "Bearer \xff"):
            refused(http.get("/v1/models", headers={"authorization": header.encode("latin-1")}), 401, "API key")
        assert http.get("/health").status_code == 200
        first, second = ({"authorization": f"Bearer {name}-key-of-sixteen"} for name in ("first", "second"))
        ask = {"model": NAME, "prompt": "shared text " * 4, "max_tokens": 2, "temperature": 0}
        told = http.post("/v1/completions", json=ask, headers=first).json()
        longer = ask | {"prompt": ask["prompt"] + told["choices"][0]["text"] + "more"}
        missed = http.post("/v1/completions", json=longer, headers=second).json()["usage"]["statewell"]
        assert missed == {"reused": 0, "missed": "nothing held"}
        assert http.post("/v1/completions", json=longer, headers=first).json()["usage"]["statewell"]["reused"] > 40
        saving = {"name": "mine", "response_id": told["id"]}
        refused(http.post("/v1/sessions", json=saving, headers=second), 404, "no recent answer")
        assert http.post("/v1/sessions", json=saving, headers=first).status_code == 200
        assert http.get("/v1/sessions", headers=second).json()["data"] == []
        refused(http.get("/v1/sessions/mine", headers=second), 404, "no session")


def test_keys_and_hosts_that_are_not_safe_end_the_start(tmp_path):
    with pytest.raises(RequestError, match="can be reached from other machines; give --api-key-file"):
        require_safe_host("0.0.0.0", Keys())
    require_safe_host("0.0.0.0", Keys((b"x",)))
    require_safe_host("::1", Keys())
    with pytest.raises(RequestError, match="cannot be read"):
        read_keys(tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(RequestError, match="holds no key"):
        read_keys(tmp_path / "empty")
    (tmp_path / "short").write_text("abc")
    with pytest.raises(RequestError, match="a key of 3 characters"):
        read_keys(tmp_path / "short")


def test_too_many_at_a_time_and_slow_ones_are_turned_away(model, tmp_path):
    limits = Limits(requests=1, header_s=0.5, body_s=0.3)
    with live(model, config_in(tmp_path, limits=limits)) as running, running.client() as http:
        ask = {"model": NAME, "prompt": "a", "max_tokens": 100_000, "stream": True}
        with http.stream("POST", "/v1/completions", json=ask) as answer:
            lines = answer.iter_lines()  # kept: it closes the answer when it goes
            next(lines)
            busy = http.post("/v1/completions", json=ask)
            refused(busy, 503, "the most; try again later")
            assert busy.headers["retry-after"] == "1"
        while http.post("/v1/completions", json=ask | {"stream": False, "max_tokens": 1}).status_code == 503:
            pass  # until the server has seen that the first one left
        address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        with socket.create_connection(address, 10) as slow:
            slow.sendall(head + b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{")
            assert b"408" in slow.recv(100)
        with socket.create_connection(address, 10) as slow:
            slow.sendall(head)
            assert slow.recv(100) == b""  # closed, after a second or two
        with socket.create_connection(address, 10) as fat:
            fat.sendall(head + b"A: " + b"a" * 2**17)
            assert b"400" in fat.recv(100)
        assert http.get("/health").status_code == 200


def test_nothing_is_left_of_all_that_was_refused(server: Live):
    gauges = server.call(empty)
    assert (gauges.rows, gauges.running, gauges.waiting, gauges.reserved["held"], gauges.reserved["pages"]) == (0,) * 5
