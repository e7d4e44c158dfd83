"""Some layers of a model, from released folders and our own."""

from __future__ import annotations

import pytest
import torch

import statewell as sw
from statewell.checkpoints.export import export
from statewell.errors import CheckpointError, RequestError
from tests.models.golden import GOLDEN

IDS = torch.arange(24).view(2, 12)


@torch.no_grad()
def expected(whole, first: int, last: int):
    """The model of some layers made by hand: their weights put into a model of that depth."""
    from dataclasses import replace

    part = sw.build(replace(whole.config, layers=whole.config.layers[first:last])).to(whole.embedding.weight.dtype)
    inside, outside = whole.blocks[first:last], {n: t for n, t in whole.state_dict().items() if "blocks." not in n}
    part.load_state_dict(outside | {f"blocks.{n}": t for n, t in inside.state_dict().items()})
    return part(IDS)


@pytest.mark.parametrize(
    ("folder", "layers", "first", "last"),
    [
        ("gpt2", "1:3", 1, 3),
        ("gpt2", ":2", 0, 2),
        ("kimi_linear", "2:", 2, 6),
        ("kimi_k3", "0:4", 0, 4),
        ("kimi_k3", "3:7", 3, 7),
    ],
)
@torch.no_grad()
def test_a_slice_is_its_layers_between_embedding_and_head(folder, layers, first, last):
    whole = sw.load(GOLDEN / folder, dtype=torch.float32, experts="dense")
    part = sw.load(GOLDEN / folder, dtype=torch.float32, experts="dense", layers=layers)
    assert part.config.layers == whole.config.layers[first:last]
    assert torch.equal(part(IDS), expected(whole, first, last))


@torch.no_grad()
def test_our_own_models_are_cut_alike():
    whole = sw.load("kimi_linear:nano", dtype=torch.float32)
    assert torch.equal(sw.load("kimi_linear:nano", torch.float32, layers="1:4")(IDS), expected(whole, 1, 4))


@torch.no_grad()
def test_a_slice_needs_only_the_shards_it_reads(tmp_path):
    model = sw.build("gpt2:nano", seed=2)
    files = export(model, tmp_path / "out", shard_bytes=300_000).files
    part = sw.load(tmp_path / "out", layers="0:1")(IDS)
    assert torch.equal(part, expected(model, 0, 1))
    (tmp_path / "out" / "model-00004-of-00005.safetensors").unlink()
    assert len(files) > 5
    assert torch.equal(sw.load(tmp_path / "out", layers="0:1")(IDS), part)
    with pytest.raises(CheckpointError, match=r"first: h\.\d\..*model-00004-of-00005\.safetensors is missing"):
        sw.load(tmp_path / "out", layers="1:4")


@pytest.mark.parametrize(
    ("folder", "layers", "words"),
    [
        ("gpt2", "2", "is no range of layers"),
        ("gpt2", "2:2", "are none of gpt2's, which has 0:3"),
        ("gpt2", "0:4", "are none of gpt2's, which has 0:3"),
        ("kimi_k3", "4:9", "start inside a group of attention residuals; start where one begins, at layer 3"),
    ],
)
def test_a_range_that_is_none_is_refused(folder, layers, words):
    with pytest.raises(RequestError) as caught:
        sw.load(GOLDEN / folder, layers=layers)
    assert words in str(caught.value)
