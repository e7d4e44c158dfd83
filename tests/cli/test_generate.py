"""`statewell generate` around a stand-in model, then around the shipped ones."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import unicodedata

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import statewell.checkpoints.load
from statewell.architectures import ARCHITECTURES
from statewell.checkpoints.native import save_model
from statewell.cli import generate as verb
from statewell.engine.generate import TokenEvent
from statewell.errors import CheckpointError, LimitError, RequestError
from statewell.models import build
from tests.engine.standin import StandIn

APP = typer.Typer()
APP.command()(verb.generate)


@pytest.fixture
def run(monkeypatch):
    """Run the verb on a stand-in that says `text`; the outcome with stdout and stderr apart."""

    def go(text: str, *arguments: str, context: int | None = None):
        model = StandIn(text.encode(), context)
        model.prompt_length = 2
        monkeypatch.setattr(statewell.checkpoints.load, "load", lambda name, **_: model)
        return CliRunner().invoke(APP, ["model", "go", *arguments], catch_exceptions=False)

    return go


def test_text_is_on_stdout_and_figures_on_stderr(run):
    outcome = run("def main():", "--max-tokens", "11", "--temperature", "0")
    assert outcome.exit_code == 0
    assert outcome.stdout == "def main():\n"
    assert "11 tokens at " in outcome.stderr
    assert "after a prompt of 2 tokens at " in outcome.stderr
    assert "memory: 12 B used (12 B), 128 B reserved (128 B), bf16" in outcome.stderr


def test_json_is_one_document_with_the_contracts_keys(run):
    outcome = run("one END", "--json", "--temperature", "0", "--stop", "END", "--stop", "other")
    document = json.loads(outcome.stdout)
    assert document["text"] == "one "
    assert document["tokens"] == 7
    assert document["tokens_per_s"] > 0
    assert document["prefill_tokens_per_s"] > 0
    assert document["memory"]["used_bytes"] == 8
    assert document["memory"]["reserved_bytes"] == 128
    assert document["finish_reason"] == "stop"
    assert outcome.stderr == ""


def test_the_models_own_limit_is_said_in_one_sentence(run):
    outcome = run("abcdefgh", "--temperature", "0", context=6)
    assert outcome.stdout == "abcde\n"
    assert outcome.stderr.count("Stopped because stand-in holds at most 6 tokens.") == 1


def test_a_prompt_past_the_limit_and_values_out_of_range_are_refused(run):
    with pytest.raises(LimitError, match="shorten it by 1 tokens"):
        run("x", context=1)
    with pytest.raises(RequestError, match=r"temperature is -1\.0"):
        run("x", "--temperature", "-1")
    with pytest.raises(RequestError, match="max_tokens is 0"):
        run("x", "--max-tokens", "0")


class Terminal(io.StringIO):
    """A terminal that counts how often it is flushed."""

    flushes = 0

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.flushes += 1


def events(*texts: str) -> list[TokenEvent]:
    return [TokenEvent(text=text, token=0) for text in texts]


def test_control_characters_are_shown_and_not_obeyed_by_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    verb._show(iter(events("a\x1b[2J", "\r\x07\x9b1m\x7f", "\tb\n")))
    assert terminal.getvalue() == "a␛[2J␍␇<U+009B>1m␡\tb\n\n"


def test_every_event_is_flushed_by_itself(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    verb._show(iter(events("a", "", "b")))
    assert terminal.flushes == 4  # three events and the closing newline


@settings(deadline=None, derandomize=True, database=None)
@given(st.text())
def test_no_control_character_survives_but_newlines_and_tabs(text):
    shown = verb.visible(text)
    assert all(sign in "\n\t" or unicodedata.category(sign) != "Cc" for sign in shown)
    assert verb.visible(shown) == shown


def test_text_in_a_pipe_is_as_the_model_gave_it(run):
    assert run("a\x1b[2Jb", "--max-tokens", "6", "--temperature", "0").stdout == "a\x1b[2Jb\n"


def test_an_output_that_is_not_utf_8_shows_a_question_mark(monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", written)
    verb._show(iter(events("é€")))
    assert written.buffer.getvalue() == "é?\n".encode("latin-1")


def test_control_c_ends_the_line_and_says_so(capsys):
    def interrupted():
        yield from events("half a li")
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as end:
        verb._show(interrupted())
    assert end.value.exit_code == 130
    shown = capsys.readouterr()
    assert shown.out == "half a li\n"
    assert "Interrupted" in shown.err


def test_a_reader_that_has_gone_ends_the_text_without_a_complaint():
    script = (
        "from statewell.cli.generate import _show\n"
        "from statewell.engine.generate import TokenEvent\n"
        "assert _show(TokenEvent(text='x' * 1000, token=0) for _ in range(10_000)) is None\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout.read(10) == b"x" * 10
    writer.stdout.close()
    complaint = writer.stderr.read()
    writer.stderr.close()
    assert writer.wait() == 0
    assert complaint == b""


def test_a_saved_model_answers_and_a_folder_without_one_does_not(tmp_path):
    save_model(tmp_path / "run", build("kimi_k3:nano", seed=0))
    arguments = [str(tmp_path / "run"), "def ", "--max-tokens", "5", "--json"]
    first, again = (CliRunner().invoke(APP, arguments, catch_exceptions=False) for _ in range(2))
    assert json.loads(first.stdout)["tokens"] == 5
    assert json.loads(first.stdout)["text"] == json.loads(again.stdout)["text"]
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        CliRunner().invoke(APP, [str(tmp_path), "def "], catch_exceptions=False)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_shipped_model_answers_by_its_name(architecture):
    arguments = [f"{architecture}:nano", "def ", "--max-tokens", "8", "--json"]
    outcome = CliRunner().invoke(APP, arguments, catch_exceptions=False)
    assert json.loads(outcome.stdout)["tokens"] == 8
