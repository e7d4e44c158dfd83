"""K3's MXFP4 experts behind one interface: dense, packed and on the disk, and a file that changes under them."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict

import pytest
import torch
from typer.testing import CliRunner

import statewell as sw
from statewell import architectures
from statewell.checkpoints.expert_files import ExpertFiles
from statewell.checkpoints.export import export
from statewell.checkpoints.packed import expert_cache
from statewell.cli import generate as verb
from statewell.cli.main import app
from statewell.config.layers import LatentMoESpec
from statewell.errors import CheckpointError, LimitError, RequestError
from statewell.kernels import ops
from statewell.models.ffn.experts import DenseExperts, DiskExperts, PackedExperts
from statewell.plan.experts import experts_at, held_bytes, packed_bytes
from tests.models.golden import GOLDEN
from tests.tolerances import LIMITS, relative_rms

K3 = GOLDEN / "kimi_k3"
IDS = torch.arange(40).view(2, 20) * 7 % 160
ONE_EXPERT, AT_ONCE, LAYERS, EXPERTS = 3 * 32 * 32 * 17 // 32, 3, 8, 12


def logits(model, steps: int = 4) -> torch.Tensor:
    """A prompt taken at once, then tokens one by one."""
    memory = model.new_memory(len(IDS))
    with torch.no_grad():
        return torch.cat([model(IDS[:, :-steps], memory), *(model(i, memory) for i in IDS[:, -steps:].split(1, 1))], 1)


def on_disk(capacity: int, folder=K3, **settings):
    return sw.load(folder, experts="disk", expert_cache=capacity, **settings)


def test_packed_experts_equal_the_unpacked_ones_in_a_whole_model():
    dense, packed = (sw.load(K3, dtype=torch.float64, experts=kind) for kind in ("dense", "packed"))
    assert isinstance(packed.layers[1].ffn.experts, PackedExperts)
    assert isinstance(dense.layers[1].ffn.experts, DenseExperts)
    assert relative_rms(logits(packed), logits(dense)) <= LIMITS["operation", torch.float64]
    assert relative_rms(logits(sw.load(K3)), logits(dense)) <= LIMITS["model", torch.float32]


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("slots", [AT_ONCE, AT_ONCE + 1, 7, 20, 95, 96, 1000])
def test_experts_on_a_disk_give_the_same_bits_at_every_cap(slots, dtype):
    model = on_disk(slots * ONE_EXPERT + 5, dtype=dtype)
    assert isinstance(model.layers[1].ffn.experts, DiskExperts)
    assert torch.equal(logits(model), logits(sw.load(K3, dtype=dtype)))
    figures = expert_cache(model).figures
    assert figures.capacity_bytes == min(slots, LAYERS * EXPERTS) * ONE_EXPERT
    assert figures.read_bytes == (figures.misses + figures.read_ahead) * ONE_EXPERT
    if slots >= LAYERS * EXPERTS:
        assert figures.misses <= LAYERS * EXPERTS, "an expert that is kept was read again"


def test_a_cache_below_one_tokens_experts_is_refused_with_the_number():
    needed = AT_ONCE * ONE_EXPERT
    with pytest.raises(LimitError, match=f"{needed - 1:,} bytes cannot hold the 3 experts .* {needed:,} bytes"):
        on_disk(needed - 1)


def test_a_conversation_that_repeats_its_experts_is_read_ahead_and_one_that_does_not_is_not():
    repeating = on_disk(2 * AT_ONCE * ONE_EXPERT)
    memory = repeating.new_memory(1)
    with torch.no_grad():
        for _ in range(12):
            repeating(IDS[:1, :1], memory)
    figures = expert_cache(repeating).figures
    assert figures.used_ahead > 0
    assert figures.used_ahead >= figures.read_ahead / 2
    changing = on_disk(2 * AT_ONCE * ONE_EXPERT)
    for layer in expert_cache(changing)._layers:
        layer.repeats = -100.0
    logits(changing)
    assert expert_cache(changing).figures.read_ahead == 0


def shortened(tmp_path, cut):
    """A copy of the golden, opened on disk, whose file then loses its end."""
    folder = tmp_path / "k3"
    shutil.copytree(K3, folder)
    model = on_disk(AT_ONCE * ONE_EXPERT, folder)
    file = folder / "model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.truncate(cut(size))
    return model, file


def test_a_file_shortened_after_opening_is_told_with_tensor_expected_and_found(tmp_path):
    model, file = shortened(tmp_path, lambda size: size)
    expert = expert_cache(model)._layers[3].experts[5]
    last = max(expert, key=lambda stored: stored.entry.end).entry
    for left in (last.nbytes - 1, last.nbytes // 2, 0):
        with file.open("r+b") as opened:
            opened.truncate(last.begin + left)
        files, room = ExpertFiles([file]), memoryview(bytearray(ONE_EXPERT))
        with pytest.raises(CheckpointError) as refusal:
            files.read(expert, room)
        files.close()
        for part in (str(file), last.name, f"has {last.nbytes:,} bytes", f"{left:,} were found"):
            assert part in str(refusal.value)


def test_a_model_whose_file_was_shortened_stops_with_a_sentence_and_again_when_asked_again(tmp_path):
    first = min(stored.entry.begin for stored in expert_cache(on_disk(AT_ONCE * ONE_EXPERT))._layers[0].experts[0])
    model, _ = shortened(tmp_path, lambda size: first + 10)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="was shortened"):
            list(model.layers[1].ffn.experts.source.stream(range(EXPERTS)))


def test_an_unknown_kind_or_a_cache_for_nothing_is_refused():
    with pytest.raises(RequestError, match="experts cannot be 'disc'; did you mean 'disk'"):
        sw.load(K3, experts="disc")
    with pytest.raises(RequestError, match="came with packed experts, which need none"):
        sw.load(K3, expert_cache=2**30)
    with pytest.raises(CheckpointError, match="not in MXFP4"):
        sw.load(GOLDEN / "kimi_linear", experts="disk")


def test_some_layers_of_a_model_read_their_own_experts():
    whole, part = sw.load(K3, layers="3:7"), on_disk(10 * ONE_EXPERT, layers="3:7")
    assert torch.equal(logits(part), logits(whole))


@pytest.mark.parametrize("kind", ["dense", "packed", "disk"])
def test_the_planned_bytes_of_a_loaded_model_are_the_bytes_of_its_tensors(kind):
    capacity = 30 * ONE_EXPERT + 17 if kind == "disk" else None
    model = sw.load(K3, experts=kind, expert_cache=capacity)
    held = sum(tensor.nbytes for tensor in model.state_dict().values())
    if kind == "disk":
        held += expert_cache(model).figures.capacity_bytes
    assert held == held_bytes(model.config, kind, capacity or 0)


def test_a_packed_expert_costs_17_bytes_for_32_weights():
    config = sw.load(K3).config
    layers = experts_at(config)
    assert [layer.count for layer in layers] == [EXPERTS] * LAYERS
    assert {layer.packed_bytes for layer in layers} == {ONE_EXPERT}
    assert packed_bytes(config) == LAYERS * EXPERTS * ONE_EXPERT
    assert packed_bytes(architectures.RELEASED["kimi-k3"]) == 1_446_456_066_048


def test_the_cache_is_told_in_one_line_and_as_plain_values():
    model = on_disk(AT_ONCE * ONE_EXPERT)
    logits(model)
    figures = expert_cache(model).figures
    line = verb.cache_summary(figures)
    assert f"{figures.hits:,} of {figures.hits + figures.misses:,} asked for" in line
    assert f"{figures.read_bytes:,} B read" in line
    assert set(asdict(figures)) >= {"capacity_bytes", "hits", "misses", "read_bytes"}


def packed_nano(folder):
    """A small K3 of ours whose experts are quantised, exported with its tokenizer."""
    model = sw.build("kimi_k3:nano", seed=2)
    for layer, block in zip(model.config.layers, model.layers, strict=True):
        if isinstance(layer.ffn, LatentMoESpec):
            dense, packed = block.ffn.experts, PackedExperts(layer.ffn, layer.ffn.latent)
            for name in ("w1", "w3", "w2"):
                for part, made in zip(("packed", "scale"), ops.mxfp4_quantise(getattr(dense, name)), strict=True):
                    packed.get_buffer(f"{name}_{part}").copy_(made)
            block.ffn.experts = packed
    export(model, folder)
    return model


def test_generate_says_the_same_wherever_the_experts_are_and_what_the_cache_did(tmp_path):
    model = packed_nano(tmp_path / "k3")
    assert relative_rms(logits(sw.load(tmp_path / "k3")), logits(model)) <= LIMITS["operation", torch.float32]
    told = {}
    for arguments in ([], ["--experts", "disk", "--expert-cache", "8Ki"]):
        given = [
            "generate",
            str(tmp_path / "k3"),
            "def ",
            "--temperature",
            "0",
            "--max-tokens",
            "12",
            "--json",
            *arguments,
        ]
        outcome = CliRunner().invoke(app, [*given, *arguments], catch_exceptions=False)
        document = json.loads(outcome.stdout)
        told[document["text"]] = document["expert_cache"]
    assert len(told) == 1, "the text depends on where the experts are"
    (figures,) = told.values()
    assert figures["capacity_bytes"] == 5 * 3 * 32 * 32 * 17 // 32
    assert figures["misses"] > 0
    assert figures["read_bytes"] > 0
