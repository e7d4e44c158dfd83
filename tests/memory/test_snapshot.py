"""Snapshots in files: exact for all six, refused by another model, never half-written."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from statewell.architectures import ARCHITECTURES
from statewell.errors import CheckpointError
from statewell.memory.snapshot import load_snapshot, save_snapshot
from statewell.models import build
from statewell.models.fingerprint import fingerprint


def told(model, rows=2, tokens=37):
    """A memory of `model` that has taken tokens in, and the next ones."""
    memory = model.new_memory(rows)
    ids = torch.randint(256, (rows, tokens + 3), generator=torch.Generator().manual_seed(3))
    model(ids[:, :tokens], memory)
    return memory, ids[:, tokens:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_a_saved_memory_goes_on_exactly_where_it_was(tmp_path, architecture, dtype):
    model = build(f"{architecture}:nano", seed=5).to(dtype)
    memory, following = told(model)
    path = tmp_path / "s.safetensors"
    save_snapshot(path, memory.snapshot(), fingerprint(model), {"text": "hällo\n"})
    expected = model(following, memory)

    again = build(f"{architecture}:nano", seed=5).to(dtype)
    saved = load_snapshot(path, fingerprint(again))
    restored = again.new_memory(2)
    restored.restore(saved.snapshot)
    assert saved.notes == {"text": "hällo\n"}
    assert restored.lengths.tolist() == [37, 37]
    assert torch.equal(again(following, restored), expected)
    held = memory.snapshot().tensors
    assert all(torch.equal(tensor, held[name]) for name, tensor in restored.snapshot().tensors.items())


@torch.no_grad()
def test_every_tensor_survives_to_the_bit_with_odd_values_and_empty_rows(tmp_path):
    memory = build("kimi_k3:nano").new_memory(3)
    snapshot = memory.snapshot()  # growing caches of no tokens
    for tensor in snapshot.tensors.values():
        tensor.copy_(
            torch.tensor([float("nan"), -0.0, 1e-42, float("inf")])
            .repeat(tensor.numel())[: tensor.numel()]
            .view_as(tensor)
        )
    save_snapshot(tmp_path / "s.safetensors", snapshot, "f")
    found = load_snapshot(tmp_path / "s.safetensors", "f").snapshot
    assert found.lengths == (0, 0, 0)
    assert found.tensors.keys() == snapshot.tensors.keys()
    for name, tensor in snapshot.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name].view(torch.int32), tensor.view(torch.int32))


def test_a_snapshot_is_refused_by_a_model_with_one_other_weight(tmp_path):
    model, other = build("deltanet:nano"), build("deltanet:nano")
    assert fingerprint(model) == fingerprint(other)
    with torch.no_grad():
        other.norm.weight[0] += 1e-6
    save_snapshot(tmp_path / "s.safetensors", model.new_memory(1).snapshot(), fingerprint(model))
    with pytest.raises(CheckpointError, match="was taken from another model"):
        load_snapshot(tmp_path / "s.safetensors", fingerprint(other))


def test_a_fingerprint_sees_dtype_config_and_threads_alike():
    model = build("gpt2:nano")
    taken = fingerprint(model)
    assert len(taken) == 64
    torch.set_num_threads(2)
    assert fingerprint(model) == taken
    torch.set_num_threads(1)
    assert fingerprint(build("gpt2:nano", dtype=torch.bfloat16)) != taken
    assert fingerprint(build("gpt2:nano", seed=1)) != taken
    assert fingerprint(build("kimi_linear:nano")) != fingerprint(build("kimi_k3:nano"))


WRONG = {
    "other metadata": ({"format": "pt"}, {}, "is no snapshot"),
    "a later version": ({"version": "2"}, {}, "has version 2"),
    "no lengths": ({"lengths": "x"}, {}, "lengths is not JSON"),
    "lengths that are text": ({"lengths": '["3"]'}, {}, "lengths should be whole numbers"),
    "a negative length": ({"lengths": "[-1]"}, {}, "lengths should be whole numbers"),
    "a tensor of no layer": ({}, {"state": torch.zeros(1)}, "named LAYER.NAME"),
    "whole numbers": ({}, {"0.state": torch.zeros(1, dtype=torch.int64)}, "is I64; a memory holds"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_damaged_snapshot_is_refused(tmp_path, wrong):
    metadata, tensors, words = WRONG[wrong]
    good = {"format": "statewell-snapshot", "version": "1", "fingerprint": "f", "lengths": "[1]"}
    save_file(tensors, tmp_path / "s.safetensors", good | metadata)
    with pytest.raises(CheckpointError, match=words):
        load_snapshot(tmp_path / "s.safetensors", "f")


def test_a_cut_snapshot_is_refused_and_other_rows_do_not_take_it(tmp_path):
    model, path = build("gpt2:nano"), tmp_path / "s.safetensors"
    memory, _ = told(model)
    save_snapshot(path, memory.snapshot(), "f")
    with pytest.raises(CheckpointError, match="does not fit 1 rows"):
        model.new_memory(1).restore(load_snapshot(path, "f").snapshot)
    assert load_file(path).keys() == memory.snapshot().tensors.keys()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="cut short by 1 bytes"):
        load_snapshot(path, "f")
