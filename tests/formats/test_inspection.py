"""What inspect says of checkpoints, saved models, runs and snapshots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from statewell.checkpoints.native import save_model
from statewell.errors import CheckpointError
from statewell.formats.inspection import inspect
from statewell.memory.snapshot import save_snapshot
from statewell.models import build
from statewell.plan.weights import total
from tests.formats.files_fixture import described, write_file, write_index, write_shards

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def test_a_released_gpt2_is_counted_without_its_masks():
    found = inspect(GOLDEN / "gpt2")
    with safe_open(GOLDEN / "gpt2" / "model.safetensors", "pt") as opened:
        sizes = {name: opened.get_tensor(name).numel() for name in opened.keys()}  # noqa: SIM118 - it is no dict
    masks = [name for name in sizes if name.endswith(".attn.bias") and "c_attn" not in name]
    assert masks
    assert found.family == "gpt2"
    assert found.kind == "checkpoint"
    assert found.parameters == sum(sizes.values()) - sum(sizes[name] for name in masks)
    assert found.tensors == len(sizes)
    assert found.problems == ()


def test_kimi_k3s_packed_experts_count_two_to_a_byte_and_their_scales_not_at_all(tmp_path):
    header = {
        "e.w1.weight_packed": described("U8", [6, 32], 0, 192),
        "e.w1.weight_scale": described("U8", [6, 2], 192, 204),
        "alone.weight_scale": described("U8", [2], 204, 206),
        "norm.weight": described("BF16", [5], 206, 216),
    }
    found = inspect(write_file(tmp_path / "k.safetensors", header, 216))
    assert found.parameters == 6 * 64 + 2 + 5
    assert found.dtypes == {"U8": 206, "BF16": 10}
    assert found.bytes == 216
    golden = inspect(GOLDEN / "kimi_k3")
    assert golden.family == "kimi_k3"
    assert (
        golden.layers
        == json.loads((GOLDEN / "kimi_k3" / "config.json").read_text())["text_config"]["num_hidden_layers"]
    )
    assert golden.problems == ()


@pytest.mark.parametrize("name", ["gpt2", "kimi_linear", "kimi_k3"])
def test_a_saved_model_and_a_run_are_told_apart_and_counted(tmp_path, name):
    model = build(f"{name}:nano")
    save_model(tmp_path, model)
    found = inspect(tmp_path)
    assert (found.kind, found.family, found.name) == ("model", "statewell", f"{name}:nano")
    assert found.layers == len(model.config.layers)
    assert found.parameters == total(model.config)
    assert found.bytes == 4 * total(model.config)
    (tmp_path / "train.json").write_text("{}")
    assert inspect(tmp_path).kind == "run"


def test_a_snapshot_says_its_tokens_and_no_parameters(tmp_path):
    model = build("kimi_linear:nano")
    memory = model.new_memory(2)
    model(torch.zeros(2, 9, dtype=torch.int64), memory)
    save_snapshot(tmp_path / "s.safetensors", memory.snapshot(), "f")
    found = inspect(tmp_path / "s.safetensors")
    assert (found.kind, found.tokens, found.parameters) == ("snapshot", (9, 9), 0)
    assert found.bytes == memory.used()


def test_an_index_and_one_shard_are_inspected_by_themselves(tmp_path):
    write_index(tmp_path, write_shards(tmp_path), total_size=24)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        found = inspect(path)
        assert (found.tensors, found.parameters, found.bytes, len(found.files)) == (3, 14, 24, 2)
        assert found.problems == (f"{tmp_path} holds no config.json; its family is not known.",)
    assert inspect(tmp_path / "model-00001-of-00002.safetensors").problems == ()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "not JSON"),
        ("[]", "an object is expected|no JSON object"),
        ('{"model_type": "bert"}', "model_type"),
        ('{"model_type": "gpt2", "n_embd": "wide"}', "n_embd"),
        ('{"format": "statewell", "model": {"kind": "ModelConfig", "wdith": 1}}', "wdith"),
        ('{"model_type": "gpt2", "model_type": "gpt2"}', "twice"),
    ],
)
def test_a_config_that_is_wrong_is_a_problem_and_the_tensors_are_still_told(tmp_path, config, words):
    write_file(tmp_path / "model.safetensors", {"h.3.x": described("U8", [2], 0, 2)}, 2)
    (tmp_path / "config.json").write_text(config)
    found = inspect(tmp_path)
    assert (found.family, found.tensors, found.layers) == (None, 1, 1)
    assert len(found.problems) == 1
    assert any(word in found.problems[0] for word in words.split("|"))


def test_nothing_to_inspect_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="holds no"):
        inspect(tmp_path)
