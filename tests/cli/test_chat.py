"""`statewell chat` over a pipe, as a script talks with it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import statewell as sw
from statewell.cli.chat import conversations_folder
from statewell.cli.chat_lines import ChatLines, memory_lines, said_of
from statewell.engine.conversation import ChatSettings, Conversation, Turn
from statewell.engine.request import Reuse, Usage

PACKAGE = Path(sw.__file__).resolve().parents[1]
CHAT = [sys.executable, "-u", "-c", "from statewell.cli.main import run; run()", "chat", "gated_deltanet:nano"]


@pytest.fixture
def talk(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Have a conversation of these lines with a model that has seeded random weights; what is on stderr."""

    def go(lines: str) -> str:
        conversation = Conversation(sw.build("gated_deltanet:nano", seed=2), ChatSettings(max_tokens=8))
        ChatLines(conversation, tmp_path).run(io.StringIO(lines))
        return capsys.readouterr().err

    return go


def test_lines_are_answered_saved_forked_and_loaded_again(talk, tmp_path: Path):
    err = talk("hello\n/save one\n/fork\nmore\n/fork 1\n/history\n/memory\n/save one\n/quit\nnever read\n")
    assert "never read" not in err
    assert err.count("prompt tokens were in memory") == 2
    assert "0 of 22 prompt tokens were in memory (nothing held); cut at --max-tokens" in err
    assert "Fork 2 of 2, 2 messages long." in err
    assert "Fork 1 of 2, 2 messages long." in err
    assert err.count("user: hello") == 1
    assert "user: more" not in err
    assert err.count("Saved 29 tokens in") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["one.safetensors"]

    err = talk("/load two\n/load one\nmore\n")
    assert "There is no conversation two" in err
    assert "there are one." in err
    assert "Loaded 29 tokens" in err
    assert "8 tokens in" in err
    assert ": 0 of" not in err
    assert "29 of " in err


def test_what_is_wrong_is_said_and_the_conversation_goes_on(talk):
    err = talk("/what\n/save ../etc\n/save one\n/fork 7\nhello\n/save one\n/new\n/history\n")
    for sentence in [
        "error: /what is no command; /help lists them.",
        "error: Give a name of 1 to 64 letters",
        "error: There is nothing to save: nothing was said yet.",
        "error: There is no fork 7; there are 1 to 1.",
        "A new conversation.",
    ]:
        assert sentence in err
    assert "Saved 29 tokens" in err
    assert "user: hello" not in err
    assert "error: There is a conversation one already" in talk("hi\n/save one\n")


def test_an_interrupt_ends_the_answer_and_not_the_program(tmp_path: Path):
    process = subprocess.Popen(
        [
            *CHAT,
            "--sessions",
            str(tmp_path),
            "--max-tokens",
            "1000000",
            "--temperature",
            "1",
            "--memory-budget",
            "64Gi",
        ],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout.read(20)  # it speaks
    process.send_signal(signal.SIGINT)
    _, err = process.communicate("/history\n/quit\n", timeout=120)
    assert process.returncode == 0, err
    assert "interrupted" in err
    assert "user: hello" in err


def test_an_answers_last_line_says_how_it_ended_and_what_was_reused():
    usage = Usage(prompt=1200, reuse=Reuse(tokens=1150, missed="diverged at token 1150"), generated=1)
    turn = Turn(finish="stop", usage=usage, seconds=0.25, first_token_s=0.1)
    expected = "1 token in 0.2 s; 1,150 of 1,200 prompt tokens were in memory (diverged at token 1150)"
    assert said_of(turn) == expected
    failed = Turn(finish="error", usage=usage, seconds=0, first_token_s=None, error="No numbers.")
    assert said_of(failed).endswith("; error; No numbers.")


def test_the_table_of_bytes_has_a_line_for_each_kind_of_layer():
    lines = memory_lines(Conversation(sw.build("kimi_k3:nano")))
    assert [line.split("  ")[0] for line in lines[1:-1]] == ["KDA x 3", "MLA x 2", "all"]


@pytest.mark.parametrize(("home", "folder"), [("/data", "/data/statewell/sessions/open"), ("", ".local/share")])
def test_conversations_lie_in_the_data_folder(monkeypatch: pytest.MonkeyPatch, home: str, folder: str):
    monkeypatch.setenv("XDG_DATA_HOME", home)
    assert folder in str(conversations_folder())
