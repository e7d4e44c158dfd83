"""Exports: what a folder holds, that it loads again to the same bits, and that it is whole or absent."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import statewell as sw
from statewell.checkpoints.export import export
from statewell.checkpoints.native import save_model
from statewell.config.run import TrainConfig
from statewell.errors import CheckpointError, RequestError
from statewell.formats.families import describe, released_layout
from statewell.formats.family import TokenIds
from statewell.train.run import train
from tests.models.golden import GOLDEN
from tests.train.conftest import write_text

IDS = torch.arange(60).view(2, 30)
EXPORTED = ["gpt2:nano", "kimi_linear:nano", "kimi_linear:tiny", "kimi_k3:nano", "kimi_k3:tiny"]


def read(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", EXPORTED)
@torch.no_grad()
def test_an_export_loads_again_to_the_same_bits(tmp_path, name):
    model = sw.build(name, seed=3)
    exported = export(model, tmp_path / "out")
    assert exported.family == model.config.architecture
    assert {file.name for file in exported.files} >= {"config.json", "generation_config.json", "model.safetensors"}
    loaded = sw.load(tmp_path / "out")
    assert loaded.config.layers == model.config.layers
    assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in loaded.state_dict().items())
    assert torch.equal(loaded(IDS), model(IDS))
    text = "def f(x):\n\treturn 'é𝕏'"
    assert loaded.tokenizer.encode(text) == model.tokenizer.encode(text)
    assert loaded.tokenizer.separator == 0


@torch.no_grad()
def test_a_small_k3_from_the_trainer_is_exported_and_reloaded_to_identical_logits(tmp_path, monkeypatch):
    monkeypatch.setenv("STATEWELL_CACHE", str(tmp_path / "cache"))
    with torch.enable_grad():
        settings = TrainConfig(steps=2, rows=2, length=32, eval_tokens=256, final_eval_tokens=256)
        config = sw.build("kimi_k3:nano").config
        train(config, settings, tmp_path / "run", data=(write_text(tmp_path / "text"),))
    trained = sw.load(tmp_path / "run")
    export(trained, tmp_path / "out")
    assert torch.equal(sw.load(tmp_path / "out")(IDS), trained(IDS))


@pytest.mark.parametrize("folder", ["gpt2", "kimi_linear", "kimi_k3", "kimi_k3_dense"])
def test_a_goldens_file_is_written_back_with_its_names_and_bits(tmp_path, folder):
    export(sw.load(GOLDEN / folder), tmp_path / "out")
    written, released = (
        load_file(tmp_path / "out" / "model.safetensors"),
        load_file(GOLDEN / folder / "model.safetensors"),
    )
    kept = {name: value for name, value in released.items() if not name.endswith(".attn.bias")}
    assert written.keys() == kept.keys()
    text = read(tmp_path / "out" / "config.json").get("text_config", {})
    assert ("quantization_config" in text) == (folder == "kimi_k3")
    for name, value in kept.items():
        # K3's A_log gains the zeros that the release has after the last head
        assert torch.equal(written[name].flatten()[: value.numel()], value.flatten()), name
        assert written[name].dtype == value.dtype


@torch.no_grad()
def test_k3_in_bf16_keeps_in_fp32_what_the_release_does(tmp_path):
    model = sw.build("kimi_k3:nano", seed=1)
    export(model, tmp_path / "out", torch.bfloat16)
    written = load_file(tmp_path / "out" / "model.safetensors")
    released = load_file(GOLDEN / "kimi_k3" / "model.safetensors")
    kinds = {name.rsplit("layers.")[-1].split(".", 1)[-1]: value.dtype for name, value in released.items()}
    for name, value in written.items():
        kind = name.rsplit("layers.")[-1].split(".", 1)[-1]
        assert value.dtype == kinds.get(kind, torch.bfloat16), name
    path = "language_model.model.layers.0.self_attn"
    assert torch.equal(written[f"{path}.A_log"][:2], model.blocks[0].mixer.A_log)
    assert written[f"{path}.A_log"].shape == (32,)
    assert torch.equal(written[f"{path}.q_conv1d.weight"].squeeze(1), model.blocks[0].mixer.q_conv.weight)
    document = read(tmp_path / "out" / "config.json")
    assert document["dtype"] == document["text_config"]["dtype"] == "bfloat16"
    assert "quantization_config" not in document["text_config"]


def test_a_k3_loaded_dense_from_packed_experts_is_written_plain_and_says_so(tmp_path):
    model = sw.load(GOLDEN / "kimi_k3", experts="dense")
    export(model, tmp_path / "out", ids=TokenIds(bos=150, eos=(151, 152), pad=159))
    document = read(tmp_path / "out" / "config.json")
    assert "quantization_config" not in document["text_config"]
    assert document["eos_token_id"] == document["text_config"]["eos_token_id"] == [151, 152]
    assert read(tmp_path / "out" / "generation_config.json")["eos_token_id"] == [151, 152]
    again = sw.load(tmp_path / "out")
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


@torch.no_grad()
def test_large_exports_are_sharded_beside_an_index(tmp_path):
    model = sw.build("gpt2:nano", seed=2)
    files = export(model, tmp_path / "out", shard_bytes=300_000).files
    shards = [file for file in files if file.suffix == ".safetensors"]
    assert [shard.name for shard in shards] == [f"model-0000{n}-of-00005.safetensors" for n in range(1, 6)]
    assert all(sum(value.nbytes for value in load_file(shard).values()) <= 300_000 for shard in shards)
    index = read(tmp_path / "out" / "model.safetensors.index.json")
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in model.state_dict().values())
    assert torch.equal(sw.load(tmp_path / "out")(IDS), model(IDS))
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00005\.safetensors is missing"):
        sw.load(tmp_path / "out")


@pytest.mark.parametrize("prefix", ["", "transformer."])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("head", ["absent", "equal", "other"])
@torch.no_grad()
def test_heads_tied_and_untied_with_and_without_the_prefix(tmp_path, prefix, tied, head):
    config = describe({**read(GOLDEN / "gpt2" / "config.json"), "tie_word_embeddings": tied}).config
    model = sw.build(config, seed=1)
    export(model, tmp_path / "out")
    path = tmp_path / "out" / "model.safetensors"
    tensors = {prefix + name if name != "lm_head.weight" else name: value for name, value in load_file(path).items()}
    tensors.pop("lm_head.weight", None)
    if head != "absent":
        tensors["lm_head.weight"] = tensors[f"{prefix}wte.weight"] + (1 if head == "other" else 0)
    save_file(tensors, path)
    if tied and head == "other":
        with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from .*wte\.weight, .*tie_word_embeddings"):
            sw.load(tmp_path / "out")
    elif not tied and head == "absent":
        with pytest.raises(CheckpointError, match=r"1 of the model's tensors not in the file, first: lm_head\.weight"):
            sw.load(tmp_path / "out")
    else:
        loaded = sw.load(tmp_path / "out")
        assert (loaded.head is None) == tied
        logits = loaded(IDS)
        assert logits.shape == (2, 30, 101)
        assert torch.equal(loaded.embedding.weight, model.embedding.weight)


def test_a_model_without_a_tokenizer_has_none_in_its_folder(tmp_path):
    model = sw.load(GOLDEN / "kimi_linear")
    assert model.tokenizer is None
    files = export(model, tmp_path / "out").files
    assert [file.name for file in files] == ["config.json", "generation_config.json", "model.safetensors"]
    document = read(tmp_path / "out" / "config.json")
    # present and null: transformers would take the released model's ids, which are outside this vocabulary
    assert all(document[f"{part}_token_id"] is None for part in ("bos", "eos", "pad"))


def test_a_folder_that_is_there_is_not_touched(tmp_path):
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(RequestError, match="is there already; name a new folder with --out"):
        export(sw.build("gpt2:nano"), tmp_path)
    assert (tmp_path / "kept").read_text() == "mine"


def test_experts_on_the_disk_are_not_exported_from_there(tmp_path):
    model = sw.load(GOLDEN / "kimi_k3", experts="disk")
    with pytest.raises(RequestError, match="load it with experts='packed' to export"):
        export(model, tmp_path / "out")


def test_a_failed_export_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr("statewell.checkpoints.writer._write_bytes", full)
    with pytest.raises(OSError, match="disk is full"):
        export(sw.build("gpt2:nano"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_no_layout_holds_is_refused_with_the_reason(tmp_path):
    from dataclasses import replace

    config = sw.build("gpt2:nano").config
    layer = replace(config.layers[0], mixer=replace(config.layers[0].mixer, bias=False))
    with pytest.raises(RequestError, match=r"gpt2 has no words for its layers\[0\]\.mixer\.bias = False"):
        released_layout(replace(config, layers=(layer, *config.layers[1:])))
    with pytest.raises(RequestError, match="context = 100"):
        released_layout(replace(config, context=100))


def test_an_export_of_a_saved_model_is_the_models(tmp_path):
    model = sw.build("kimi_k3:nano", seed=9)
    save_model(tmp_path / "saved", model)
    export(sw.load(tmp_path / "saved"), tmp_path / "out")
    assert torch.equal(sw.load(tmp_path / "out").embedding.weight, model.embedding.weight)
