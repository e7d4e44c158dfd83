"""`statewell bench` from the words typed to what is printed."""

from __future__ import annotations

import json
import sys

import pytest
import typer
from typer.testing import CliRunner

from statewell.bench import speed
from statewell.bench.alternate import Case, speed_row
from statewell.cli import bench as verb
from statewell.errors import MissingExtraError, RequestError, StatewellError

CONTRACT = ["name", "unit", "median", "min", "max", "peer", "ratio", "limit_share"]
APP = typer.Typer()
APP.command("bench", epilog=verb.EXAMPLE)(verb.bench)


def run(*words: str):
    """`statewell bench` with these words; our own errors come out as they are."""
    result = CliRunner().invoke(APP, list(words))
    if isinstance(result.exception, StatewellError):
        raise result.exception
    return result


def rows_of(*words: str) -> list[dict]:
    outcome = run(*words, "--quick", "--rounds", "1", "--json")
    assert outcome.exit_code == 0, outcome.output
    document = json.loads(outcome.stdout)
    assert [row["unit"] for row in document["limits"]] == ["GFLOP/s", "GB/s"]
    assert document["threads"] >= 1
    for row in document["rows"]:
        assert set(CONTRACT) <= set(row)
        assert 0 < row["min"] <= row["median"] <= row["max"]
        assert (row["peer"] is None) == (row["ratio"] is None)
    return document["rows"]


def test_ops_have_a_row_for_every_case_and_peer():
    rows = rows_of("ops", "--against", "transformers,torch", "--only", "a forward,")
    assert [(row["name"].split()[0], row["peer"]) for row in rows] == [
        ("delta", "transformers"),
        ("gated_delta", "transformers"),
        ("kda", "transformers"),
    ]
    assert all(row["limit_share"] > 0 for row in rows)


def test_decode_has_a_step_of_each_memory_and_a_model_at_two_contexts():
    rows = rows_of("decode", "--only", "delta")
    names = [row["name"] for row in rows]
    assert [name.split(" step")[0] for name in names[:2]] == ["delta", "gated_delta"]
    assert names[-2:] == ["gated_deltanet:nano, a token at 32 tokens", "gated_deltanet:nano, a token at 256 tokens"]
    assert rows[-1]["peer"] == "at 32 tokens"


def test_train_compares_the_six_with_our_gpt2_and_that_with_others():
    rows = rows_of("train", "--against", "torch", "--tokens", "16")
    assert [row["peer"] for row in rows] == ["torch", "gpt2", "gpt2", "gpt2", "gpt2", "gpt2"]
    assert rows[-1]["name"] == "kimi_k3:nano training step, T=16"


def test_serve_has_many_requests_a_second_turn_and_the_engines_own_share():
    rows = rows_of("serve", "--only", "kimi_k3")
    assert [row["name"].split(", ", 1)[1] for row in rows] == [
        "a token of 4 requests at a time",
        "first token after 64 tokens and 16 new ones",
        "the engine's own share of a step with 8 requests",
    ]
    assert [row["peer"] for row in rows] == ["one request", "a cold run", None]
    assert rows[-1]["unit"] == "%"


def test_limits_are_rows_of_their_own_and_a_file_has_what_is_printed(tmp_path):
    outcome = run("limits", "--quick", "--json", "--out", str(tmp_path / "new" / "limits.json"))
    document = json.loads(outcome.stdout)
    assert [row["unit"] for row in document["rows"]] == ["GFLOP/s", "GB/s"]
    assert json.loads((tmp_path / "new" / "limits.json").read_text()) == document


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chat"], "'chat' is not a suite"),
        (["serve", "--against", "torch"], "serve compares the engine with itself"),
        (["ops", "--against", "jax"], "'jax' is not a peer"),
        (["ops", "--rounds", "0"], "--rounds is 0"),
        (["ops", "--only", "mamba"], "--only 'mamba' is in no case"),
        (["ops", "--tokens", "64"], "--sizes and --tokens belong to train"),
        (["train", "--sizes", "huge"], "'huge' is not a size"),
        (["train", "--tokens", "1"], "--tokens has 1"),
        (["train", "--against", "reference"], "'reference' has nothing to time in train"),
        (["limits", "--against", "torch"], "leave --against out"),
        (["ops", "--threads", "0"], "--threads is 0"),
        (["ops", "--instructions", "mmx", "--only", "kda"], "mmx"),
    ],
)
def test_a_request_that_cannot_be_is_refused_with_the_way_out(words, said):
    with pytest.raises(RequestError, match=said):
        run(*words, "--quick")


@pytest.mark.parametrize(("peer", "package"), [("fla-naive", "fla"), ("transformers", "transformers")])
def test_a_peer_that_is_not_installed_is_named_with_its_extra(monkeypatch, peer, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"'{peer}' is not installed.*statewell\[peers\]"):
        run("ops", "--quick", "--against", peer)


def test_the_table_has_names_ratios_and_limits_in_eighty_columns(monkeypatch):
    row = speed_row("kda forward, T=2,048 H=8 K=V=128", "ms", [14.8], "transformers", [1229.0])
    row["rate"], row["rate_unit"], row["limit_share"] = 127.0, "GFLOP/s", 0.8
    name = "latent attention step over 4,096 tokens, H=32 R=512"
    wide = speed_row(name, "ms", [0.0123, 1234.0, 123.0], "at 131,072 tokens", [1.0])
    monkeypatch.setattr(speed, "_cases", lambda *_: [Case(name="kda forward", measure=lambda: [row, wide])])
    outcome = run("ops", "--quick")
    assert "83.04 x" in outcome.stdout
    assert "at 131,072 tokens" in outcome.stdout
    assert "transformers" in outcome.stdout
    assert "limits: fp32 product" in outcome.stdout
    assert max(len(line) for line in outcome.stdout.splitlines()) <= 80
    assert "1 of 3: the limits of this machine\n2 of 3: kda forward\n3 of 3: the limits again" in outcome.stderr


def test_an_interrupt_keeps_what_was_measured(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    done = Case(name="done", measure=lambda: [speed_row("done", "ms", [1.0])])
    monkeypatch.setattr(speed, "_cases", lambda *_: [done, Case(name="not done", measure=interrupted)])
    outcome = run("ops", "--quick", "--json")
    assert outcome.exit_code == 130
    assert [row["name"] for row in json.loads(outcome.stdout)["rows"]] == ["done"]
