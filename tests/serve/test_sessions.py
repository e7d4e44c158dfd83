"""Sessions over HTTP: what is saved is had back to the bit, by name, whatever happens while it is written."""

from __future__ import annotations

import resource
import threading

import pytest

import statewell as sw
from statewell.engine.conversation import Conversation, Turn
from statewell.serve.limits import Limits
from tests.serve.live import Live, config_in, empty, live

NAME = "gated_deltanet:nano"
ASK = {"model": NAME, "prompt": "class Memory:\n    def ", "max_tokens": 6, "logit_bias": {"97": 100}}


@pytest.fixture
def http(server: Live):
    with server.client() as made:
        yield made
        for session in made.get("/v1/sessions").json()["data"]:
            made.delete(f"/v1/sessions/{session['name']}")


def said(http) -> dict:
    return http.post("/v1/completions", json=ASK).json()


def test_a_session_is_saved_listed_restored_forked_and_deleted(http, server: Live):
    answer = said(http)
    saved = http.post("/v1/sessions", json={"name": "a-1", "response_id": answer["id"]}).json()
    text = ASK["prompt"] + answer["choices"][0]["text"]
    assert saved["text"] == text[:-1]  # the last token was said and not yet taken in
    assert saved["tokens"] == len(text) - 1
    assert (saved["usable"], saved["messages"]) == (True, None)
    listed = http.get("/v1/sessions").json()["data"]
    assert [(one["name"], one["bytes"]) for one in listed] == [("a-1", saved["bytes"])]
    following = ASK | {"prompt": text + "(self"}
    server.call(empty)
    cold = http.post("/v1/completions", json=following).json()
    assert cold["usage"]["statewell"]["reused"] == 0
    server.call(empty)
    assert http.post("/v1/sessions/a-1/restore").json() == saved
    warm = http.post("/v1/completions", json=following).json()
    assert warm["usage"]["statewell"]["reused"] == len(text) - 1
    assert warm["choices"] == cold["choices"]
    fork = http.post("/v1/sessions/a-1/fork", json={"name": "b"}).json()
    assert fork["text"] == saved["text"]
    assert http.delete("/v1/sessions/a-1").json()["deleted"] is True
    assert http.get("/v1/sessions/a-1").status_code == 404
    assert http.get("/v1/sessions/b").json()["tokens"] == saved["tokens"]


def test_a_chats_session_keeps_its_messages(http, server: Live, model):
    hello = [{"role": "user", "content": "hello"}]
    answer = http.post("/v1/chat/completions", json={"model": NAME, "messages": hello, "max_tokens": 4}).json()
    saved = http.post("/v1/sessions", json={"name": "chat", "response_id": answer["id"]}).json()
    reply = answer["choices"][0]["message"]["content"]
    assert saved["messages"] == [*hello, {"role": "assistant", "content": reply}]
    # the terminal's chat goes on with it, and the other way round
    talk = Conversation(model)
    assert talk.load(server.served.sessions._folder / "open" / "chat.safetensors") == saved["tokens"]
    (turn,) = [piece for piece in talk.ask("and?") if isinstance(piece, Turn)]
    assert turn.usage.reuse.tokens == saved["tokens"]
    talk.save(server.served.sessions._folder / "open" / "talked.safetensors")
    server.call(empty)
    talked = http.post("/v1/sessions/talked/restore").json()
    following = [*talked["messages"], {"role": "user", "content": "so?"}]
    next_turn = http.post("/v1/chat/completions", json={"model": NAME, "messages": following, "max_tokens": 2}).json()
    assert next_turn["usage"]["statewell"]["reused"] == talked["tokens"]


def test_a_name_stays_in_its_folder_and_is_used_once(http):
    answer = said(http)
    for name in ("../x", "a/b", "", ".hidden", "a" * 65, "x.safetensors", "a\nb", "\u00e9"):
        wrong = http.post("/v1/sessions", json={"name": name, "response_id": answer["id"]})
        assert wrong.status_code == 400, name
    for path in ("/v1/sessions/..%2f..%2fetc", "/v1/sessions/%2e%2e", "/v1/sessions/a%00"):
        assert http.get(path).status_code in (400, 404)
    body = {"name": "one", "response_id": answer["id"]}
    codes = []
    threads = [threading.Thread(target=lambda: codes.append(http.post("/v1/sessions", json=body).status_code)) for _ in range(4)]  # fmt: skip  # noqa: E501
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [200, 409, 409, 409]
    assert http.post("/v1/sessions/one/fork", json={"name": "one"}).status_code == 409


def test_a_full_disk_is_told_and_leaves_nothing(http, server: Live):
    answer = said(http)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        full = http.post("/v1/sessions", json={"name": "full", "response_id": answer["id"]})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert full.status_code == 507
    assert full.json()["error"]["message"].endswith("the disk may be full. Nothing was saved.")
    assert http.get("/v1/sessions").json()["data"] == []
    assert http.post("/v1/sessions", json={"name": "full", "response_id": answer["id"]}).status_code == 200


def test_anothers_memory_and_damaged_files_are_refused(http, server: Live, tmp_path):
    answer = said(http)
    http.post("/v1/sessions", json={"name": "mine", "response_id": answer["id"]})
    (folder,) = (path for path in server.served.sessions._folder.iterdir())
    whole = (folder / "mine.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "junk.safetensors").write_bytes(b"x" * 100)
    for name in ("cut", "junk"):
        damaged = http.post(f"/v1/sessions/{name}/restore")
        assert (damaged.status_code, damaged.json()["error"]["code"]) == (409, "session_unusable")
        assert str(folder) not in damaged.text
    other = config_in(server.served.sessions._folder)
    with live(sw.build(NAME, seed=4), other) as running, running.client() as theirs:
        (listed,) = theirs.get("/v1/sessions").json()["data"]
        assert listed["usable"] is False
        foreign = theirs.post("/v1/sessions/mine/restore")
        assert (foreign.status_code, "another model" in foreign.text) == (409, True)
    http.delete("/v1/sessions/cut")
    http.delete("/v1/sessions/junk")


def test_there_are_only_so_many_and_so_large_ones(model, tmp_path):
    with live(model, config_in(tmp_path, limits=Limits(sessions=1))) as running, running.client() as http:
        body = {"response_id": said(http)["id"]}
        assert http.post("/v1/sessions", json={"name": "a", **body}).status_code == 200
        assert http.post("/v1/sessions", json={"name": "b", **body}).json()["error"]["code"] == "too_many_sessions"
    with live(model, config_in(tmp_path / "x", limits=Limits(session_bytes=100))) as running, running.client() as http:
        body = {"response_id": said(http)["id"]}
        assert "of 100 B" in http.post("/v1/sessions", json={"name": "b", **body}).json()["error"]["message"]


def test_an_answer_whose_memory_was_let_go_cannot_be_saved(http, server: Live):
    answer = said(http)
    server.call(empty)
    gone = http.post("/v1/sessions", json={"name": "late", "response_id": answer["id"]})
    assert (gone.status_code, gone.json()["error"]["code"]) == (409, "evicted")
