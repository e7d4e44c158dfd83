"""Saved models: read back exactly, refused when truncated or foreign, never half-written."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from statewell.architectures import ARCHITECTURES, preset
from statewell.checkpoints.files import read_tensors, save_tensors
from statewell.checkpoints.load import load
from statewell.checkpoints.native import load_model, save_model, saved_config, saved_tokenizer
from statewell.checkpoints.search import SHIPPED
from statewell.errors import CheckpointError, ConfigError, RequestError
from statewell.models import build
from statewell.text import load_tokenizer
from tests.text.vocabularies import FORMATS


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@torch.no_grad()
def test_a_saved_model_is_read_back_exactly(tmp_path, architecture, dtype):
    model = build(f"{architecture}:nano", seed=4, dtype=dtype)
    save_model(tmp_path / "run", model)
    loaded = load(tmp_path / "run")
    assert loaded.config == model.config == saved_config(tmp_path / "run")
    assert loaded.tokenizer == model.tokenizer
    found = loaded.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype
    text = torch.arange(30)[None]
    assert torch.equal(loaded(text), model(text))
    assert load(tmp_path / "run", dtype=torch.float64)(text).dtype == torch.float64
    assert {parameter.requires_grad for parameter in loaded.parameters()} == {True}


@pytest.fixture
def saved(tmp_path):
    save_model(tmp_path, build("gpt2:nano"))
    return tmp_path


def test_a_truncated_weights_file_is_refused(saved):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="cut short"):
        load_model(saved)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="cut short"):
        load_model(saved)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_model(saved)


def test_weights_of_another_model_are_refused_by_their_first_odd_tensor(saved):
    save_tensors(saved / "model.safetensors", dict(build("deltanet:nano").state_dict()))
    with pytest.raises(CheckpointError, match=r"of the model's tensors not in the file, first: positions\.weight"):
        load_model(saved)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda d: d.update(format="other"), CheckpointError, "not written by statewell"),
        (lambda d: d.update(version=2), CheckpointError, "has version 2"),
        (lambda d: d["model"].update(widht=3), ConfigError, "did you mean 'width'"),
    ],
)
def test_a_foreign_config_is_refused(saved, change, error, words):
    document = json.loads((saved / "config.json").read_text())
    change(document)
    (saved / "config.json").write_text(json.dumps(document))
    with pytest.raises(error, match=words):
        load_model(saved)


def test_what_is_no_model_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        load(tmp_path)
    for absent in (tmp_path / "absent", str(tmp_path / "absent")):
        with pytest.raises(RequestError, match="not a folder"):
            load(absent)
    with pytest.raises(RequestError, match="statewell train --arch gpt2"):
        load("gpt2:small")
    with pytest.raises(RequestError, match="did you mean 'kimi-k3'"):
        load("kimi-k4")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        load(tmp_path)


def test_a_folder_that_shares_a_presets_name_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2:small").mkdir()
    with pytest.raises(RequestError, match="no trained weights here"):
        load("gpt2:small")
    save_model(tmp_path / "gpt2:small", build("deltanet:nano"))
    assert load("gpt2:small").config.architecture == "deltanet"


def test_tensors_and_metadata_survive_a_file(tmp_path):
    tensors = {"a": torch.randn(3, 4).T, "b": torch.arange(3)}
    save_tensors(tmp_path / "t.safetensors", tensors, {"step": "7"})
    found, metadata = read_tensors(tmp_path / "t.safetensors")
    assert metadata == {"step": "7"}
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_config_with_more_layers_than_the_weights_is_refused(saved):
    document = json.loads((saved / "config.json").read_text())
    config = preset("gpt2", "nano")
    from statewell.config.load import model_to_json

    document["model"] = model_to_json(dataclasses.replace(config, layers=config.layers * 2))
    (saved / "config.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"of the model's tensors not in the file, first: blocks\.4\."):
        load_model(saved)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_shipped_model_is_small_bf16_and_has_a_card(architecture):
    folder = SHIPPED / f"{architecture}-nano"
    assert (folder / "model.safetensors").stat().st_size <= 1.3e6
    card = (folder / "README.md").read_text()
    assert "bits per byte" in card
    assert "Recipe" in card
    for name, tensor in load(f"{architecture}:nano").state_dict().items():
        assert tensor.dtype == (torch.bfloat16 if tensor.ndim >= 2 else torch.float32), name


@pytest.mark.parametrize("name", FORMATS)
def test_a_saved_model_keeps_its_tokenizers_files(tmp_path, name):
    tokenizer = load_tokenizer(FORMATS[name](tmp_path / "from"))
    assert tokenizer is not None
    model = build(dataclasses.replace(preset("gpt2", "nano"), vocab=tokenizer.vocab))
    model.tokenizer = tokenizer
    save_model(tmp_path / "run", model)
    assert load_model(tmp_path / "run").tokenizer == tokenizer == saved_tokenizer(tmp_path / "run")
    written = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    save_model(tmp_path / "run", model)
    again = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    assert {file for file in written if written[file] == again[file]} == set(tokenizer.files)

    model = build(preset("gpt2", "nano"))
    model.tokenizer = tokenizer
    save_model(tmp_path / "other", model)
    with pytest.raises(CheckpointError, match="ids and the model 256"):
        load_model(tmp_path / "other")
