import json
import os
import signal

import pytest
import torch
import typer
from typer.testing import CliRunner

from statewell.cli import train as command
from statewell.errors import ConfigError, RequestError, StatewellError
from statewell.train.events import StepEvent
from tests.train.conftest import write_text

SHORT = [
    "--set",
    "rows=2",
    "--set",
    "length=16",
    "--set",
    "eval_tokens=128",
    "--set",
    "final_eval_tokens=256",
]
KEYS = ["run", "step", "tokens", "train_loss", "val_bits_per_byte", "tokens_per_s", "parameters"]


@pytest.fixture
def statewell(tmp_path, monkeypatch):
    """Runs `statewell train` with the given words; our own errors come out as they are."""
    monkeypatch.setenv("STATEWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    app = typer.Typer()
    app.command("train", epilog=command.EXAMPLE)(command.train)

    def run(*words):
        result = CliRunner().invoke(app, [str(word) for word in words])
        if isinstance(result.exception, StatewellError):
            raise result.exception
        return result

    yield run
    torch.set_num_threads(threads)


def test_train_prints_the_contracts_keys_and_nothing_else_on_stdout(statewell, tmp_path):
    result = statewell("--arch", "gpt2", "--size", "nano", "--data", "text", "--steps", 4, *SHORT, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert set(KEYS) <= set(document)
    assert (document["step"], document["tokens"], document["run"]) == (4, 4 * 32, "runs/gpt2-nano")
    assert (tmp_path / "runs" / "gpt2-nano" / "model.safetensors").exists()
    assert "30 files" in result.stderr
    assert "bits per byte held out" in result.stderr


def test_without_json_the_result_is_words_for_a_person(statewell):
    result = statewell("--arch", "gpt2", "--size", "nano", "--data", "text", "--steps", "1", *SHORT)
    assert "bits per byte" in result.stdout
    assert "parameters" in result.stdout


def test_data_takes_several_paths_after_one_flag(statewell, tmp_path):
    for name in "ab":
        write_text(tmp_path / name, files=12, seed=ord(name))
    result = statewell("--arch", "gpt2", "--size", "nano", "--data", "a", "b", "--steps", "1", *SHORT)
    assert "24 files" in result.stderr
    with pytest.raises(RequestError, match="--data b"):
        statewell("--arch", "gpt2", "b")


def test_a_resumed_run_needs_no_more_than_its_folder(statewell, monkeypatch):
    from statewell.cli import train as module

    shown = module._shown
    monkeypatch.setattr(module, "_shown", interrupted_at(3, shown))
    stopped = statewell(
        "--arch", "gpt2", "--size", "nano", "--data", "text", "--out", "run", "--steps", "6", *SHORT, "--json"
    )
    assert stopped.exit_code == module.INTERRUPTED
    assert json.loads(stopped.stdout)["finished"] is False
    assert "statewell train --out run --resume" in stopped.stderr
    monkeypatch.setattr(module, "_shown", shown)
    resumed = statewell("--out", "run", "--resume", "--json")
    assert resumed.exit_code == 0
    assert json.loads(resumed.stdout)["step"] == 6


def interrupted_at(step, shown):
    from contextlib import contextmanager

    @contextmanager
    def with_interrupt():
        with shown() as show:

            def look(event):
                show(event)
                if isinstance(event, StepEvent) and event.step == step:
                    os.kill(os.getpid(), signal.SIGINT)

            yield look

    return with_interrupt


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (["--arch", "gpt3"], RequestError, "did you mean 'gpt2'"),
        (["--arch", "gpt2", "--size", "nan"], RequestError, "did you mean 'nano'"),
        (["--arch", "gpt2", "--set", "lenght=5"], ConfigError, "did you mean 'length'"),
        (["--arch", "gpt2", "--steps", "many"], ConfigError, "steps = 'many' is not a whole number"),
        (["--arch", "gpt2", "--steps", "5", "--minutes", "1"], RequestError, "give one"),
        (["--arch", "gpt2", "--config", "none.toml"], ConfigError, "cannot be read"),
        (["--arch", "gpt2", "--resume"], RequestError, "no run to resume"),
        (["--resume"], RequestError, "needs --out RUN"),
        ([], RequestError, "needs --arch or --from; architectures: gpt2"),
        (["--out", "x", "--resume", "--size", "nano"], RequestError, "knows its own model"),
    ],
)
def test_a_wrong_request_is_one_sentence_with_the_way_out(statewell, words, kind, message):
    with pytest.raises(kind, match=message) as caught:
        statewell(*words)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_help_lists_what_works_and_shows_an_example(statewell):
    result = statewell("--help")
    assert command.EXAMPLE in " ".join(result.stdout.split())
    for option in ("--arch", "--from", "--data", "--minutes", "--set", "--resume", "--json"):
        assert option in result.stdout
    assert "--recipe" not in result.stdout
