"""`statewell export`, and what other verbs do with the folder."""

from __future__ import annotations

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from statewell.cli import export as export_verb
from statewell.cli import generate as generate_verb
from statewell.cli import train as train_verb
from statewell.errors import RequestError, StatewellError
from tests.models.golden import GOLDEN
from tests.train.conftest import write_text


@pytest.fixture
def statewell(tmp_path, monkeypatch):
    """Runs a verb with the given words; our own errors come out as they are."""
    monkeypatch.setenv("STATEWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command("export")(export_verb.export)
    app.command("generate")(generate_verb.generate)
    app.command("train")(train_verb.train)

    def run(*words):
        result = CliRunner().invoke(app, [str(word) for word in words])
        if isinstance(result.exception, StatewellError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    return run


def test_an_exported_model_says_the_same(statewell, tmp_path):
    document = json.loads(statewell("export", "kimi_k3:nano", "--to", "hf", "--out", "k3", "--json").stdout)
    assert document["family"] == "kimi_k3"
    assert "k3/model.safetensors" in document["files"]
    words = ("def ", "--max-tokens", 12, "--json")
    exported, own = (json.loads(statewell("generate", name, *words).stdout) for name in ("k3", "kimi_k3:nano"))
    assert exported["text"] == own["text"]
    part = json.loads(statewell("generate", "k3", *words, "--layers", "0:2").stdout)
    assert part["text"] != own["text"]


def test_the_folder_is_named_after_the_model_and_the_dtype_is_the_one_asked_for(statewell, tmp_path):
    result = statewell("export", "gpt2:nano", "--to", "hf", "--dtype", "fp16")
    assert "gpt2-nano-hf/config.json" in result.stdout
    assert json.loads((tmp_path / "gpt2-nano-hf" / "config.json").read_text())["dtype"] == "float16"


def test_a_checkpoints_own_ids_are_kept_where_it_has_no_tokenizer(statewell, tmp_path):
    statewell("export", GOLDEN / "kimi_linear", "--to", "hf", "--out", "out")
    document = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (document["bos_token_id"], document["eos_token_id"], document["pad_token_id"]) == (1, 2, 130)


def test_a_layout_or_dtype_that_is_none_is_refused(statewell):
    with pytest.raises(RequestError, match="'gguf' is no layout"):
        statewell("export", "gpt2:nano", "--to", "gguf")
    with pytest.raises(RequestError, match="did you mean 'bf16'"):
        statewell("export", "gpt2:nano", "--to", "hf", "--dtype", "bf61")


def test_training_goes_on_from_an_export_and_is_resumed_without_it(statewell, tmp_path):
    text = write_text(tmp_path / "text")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    settings = [word for key in ("rows=2", "length=16", "eval_tokens=128") for word in ("--set", key)]
    ask = ("--data", text, "--steps", 3, *settings, "--set", "final_eval_tokens=256", "--json")
    statewell("export", "gpt2:nano", "--to", "hf", "--out", "out")
    fresh = json.loads(statewell("train", "--arch", "gpt2", "--size", "nano", *ask, "--out", "fresh").stdout)
    more = json.loads(statewell("train", "--from", "out", *ask, "--out", "more").stdout)
    assert more["val_bits_per_byte"] < fresh["val_bits_per_byte"]
    request = json.loads((tmp_path / "more" / "train.json").read_text())
    assert request["train"]["learning_rate"] == pytest.approx(3e-4)
    assert len(request["start"]) == 64
    again = json.loads(statewell("train", "--out", "more", "--resume", "--json").stdout)
    assert again["val_bits_per_byte"] == more["val_bits_per_byte"]
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--arch", "gpt2"), "brings its own model; leave --arch and --size out"),
        (("--out", "run", "--resume"), "leave --from out"),
    ],
)
def test_from_stands_alone(statewell, words, error):
    with pytest.raises(RequestError, match=error):
        statewell("train", "--from", "gpt2:nano", *words)


def test_a_model_without_a_tokenizer_cannot_be_trained_on_text(statewell):
    with pytest.raises(RequestError, match="has no tokenizer, so no text can be read for it"):
        statewell("train", "--from", GOLDEN / "gpt2")
