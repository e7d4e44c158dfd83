"""The six models whole: split = whole, causal, recomputed = plain, against transformers, and what each can and cannot
see."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import statewell as sw
from statewell.architectures import ARCHITECTURES, preset
from statewell.config.layers import AttnResSpec, ModelConfig
from statewell.config.mixers import KDASpec, MLASpec
from statewell.errors import LimitError, ShapeError
from statewell.models import build, no_decay
from statewell.models.backbone import LanguageModel
from tests.tolerances import assert_close, relative_rms

PRESETS = [f"{architecture}:nano" for architecture in ARCHITECTURES]


def ids(rows: int, tokens: int, seed: int = 0, vocab: int = 256) -> Tensor:
    return torch.randint(0, vocab, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def wide(model: str | ModelConfig, seed: int = 0) -> LanguageModel:
    """A float64 model whose weights are large enough for every gate and memory to matter."""
    resolved = preset(*model.split(":")) if isinstance(model, str) else model
    return build(dataclasses.replace(resolved, init_std=0.3), seed=seed).double()


@pytest.mark.parametrize("name", PRESETS)
@torch.no_grad()
def test_a_prompt_in_pieces_then_single_tokens_equals_the_whole(name):
    model, text = wide(name), ids(2, 75)
    memory = model.new_memory(2)
    pieces = [model(part, memory) for part in text[:, :71].split([1, 3, 66, 1], dim=1)]
    pieces += [model(text[:, t : t + 1], memory) for t in range(71, 75)]
    assert_close(torch.cat(pieces, dim=1), model(text), "model")
    assert memory.lengths.tolist() == [75, 75]


@pytest.mark.parametrize("name", PRESETS)
@torch.no_grad()
def test_measured_bytes_equal_the_plan(name):
    model = build(name)
    memory = model.new_memory(2)
    model(ids(2, 150), memory)
    plan = sw.plan(name, context=150, rows=2, cache_dtype="fp32", state_dtype="fp32")
    assert memory.used() == plan.memory.used_bytes
    assert memory.reserved() == plan.memory.reserved_bytes == sum(tensor.nbytes for tensor in memory.tensors().values())


@pytest.mark.parametrize("name", PRESETS)
@torch.no_grad()
def test_later_tokens_do_not_change_earlier_logits(name):
    model, text = wide(name), ids(1, 90)
    changed = text.clone()
    changed[:, 40:] = ids(1, 50, seed=1)
    whole = model(text)
    assert_close(model(changed)[:, :40], whole[:, :40], "model")
    assert_close(model(text[:, :40]), whole[:, :40], "model")
    assert relative_rms(model(changed)[:, 40:], whole[:, 40:]) > 1e-3


@pytest.mark.parametrize("name", PRESETS)
def test_recomputed_gradients_equal_plain_ones(name):
    text = ids(2, 70)
    gradients = []
    for recompute in (False, True):
        model = build(name, seed=3, recompute=recompute).double()
        torch.nn.functional.cross_entropy(model(text).flatten(0, 1), text.flatten()).backward()
        gradients.append({key: parameter.grad for key, parameter in model.named_parameters()})
    plain, recomputed = gradients
    for key, gradient in plain.items():
        if gradient is None:
            assert recomputed[key] is None
            assert key.startswith("blocks.0.mixer_site."), f"{key} takes no part"
        else:
            assert torch.equal(recomputed[key], gradient), key


@pytest.mark.parametrize("name", PRESETS)
@torch.no_grad()
def test_restoring_and_forking_a_whole_memory_is_exact(name):
    model = build(name)
    memory = model.new_memory(2)
    model(ids(2, 33), memory)
    kept, child = memory.snapshot(), memory.fork()
    expected = model(ids(2, 4, seed=1), memory)
    assert torch.equal(model(ids(2, 4, seed=1), child), expected)
    memory.restore(kept)
    assert memory.lengths.tolist() == [33, 33]
    assert torch.equal(model(ids(2, 4, seed=1), memory), expected)


@pytest.mark.parametrize("name", PRESETS)
def test_the_same_seed_builds_the_same_model_and_leaves_the_global_generator_alone(name):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second, other = build(name, seed=1), build(name, seed=1), build(name, seed=2)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    assert all(torch.isfinite(tensor).all() for tensor in first.state_dict().values())


def without_positions(layers: int, kinds: tuple) -> ModelConfig:
    """A nano Kimi Linear whose mixers are `kinds` in turn."""
    config = preset("kimi_linear", "nano")
    chosen = tuple(
        next(layer.mixer for layer in config.layers if isinstance(layer.mixer, kinds[index % len(kinds)]))
        for index in range(layers)
    )
    return dataclasses.replace(
        config,
        layers=tuple(dataclasses.replace(config.layers[0], mixer=mixer) for mixer in chosen),
        init_std=0.3,
    )


@torch.no_grad()
def test_mla_alone_does_not_see_the_order_of_earlier_tokens_and_the_hybrid_does():
    text = ids(1, 20)
    shuffled = text.clone()
    shuffled[0, :19] = text[0, torch.randperm(19, generator=torch.Generator().manual_seed(1))]
    alone, hybrid = wide(without_positions(1, (MLASpec,))), wide(without_positions(2, (KDASpec, MLASpec)))
    assert_close(alone(shuffled)[:, -1], alone(text)[:, -1], "model")
    assert relative_rms(hybrid(shuffled)[:, -1], hybrid(text)[:, -1]) > 1e-3


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 9])
@torch.no_grad()
def test_any_depth_and_attnres_group_go_together(group):
    model = wide(dataclasses.replace(preset("kimi_k3", "nano"), stream=AttnResSpec(group=group)))
    stream_sizes = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, stream: stream_sizes.append(len(stream.summaries)))
    model(ids(1, 5))
    # a group closes at layers 0, group, 2 x group, ...
    assert stream_sizes == [index // group + 1 for index in range(len(model.blocks))]


def test_weight_decay_spares_norms_biases_gates_convolutions_and_queries():
    for name in PRESETS:
        model = build(name)
        spared, named = no_decay(model), dict(model.named_parameters())
        for key, parameter in named.items():
            is_matrix = parameter.ndim >= 2 and "_conv." not in key
            assert (key in spared) == (not is_matrix), key


@torch.no_grad()
def test_bf16_weights_are_multiplied_in_fp32_on_a_cpu():
    for name in PRESETS:
        model = build(name, dtype=torch.bfloat16)
        rounded = build(name, dtype=torch.bfloat16).float()
        logits = model(ids(1, 12))
        assert logits.dtype == torch.float32
        assert relative_rms(logits, rounded(ids(1, 12))) < 1e-6
        assert {tensor.dtype for tensor in model.new_memory(1).tensors().values()} == {torch.float32}


def test_wrong_ids_and_lengths_past_the_limit_are_refused_before_anything_changes():
    model = build("gpt2:nano")
    memory = model.new_memory(1)
    with torch.no_grad():
        model(ids(1, 1000), memory)
    before = memory.snapshot()
    with pytest.raises(LimitError, match=r"1,025 tokens are past this model's limit of 1,024"):
        model(ids(1, 25), memory)
    with pytest.raises(ShapeError, match="2 rows of ids do not match a memory of 1 rows"):
        model(ids(2, 3), memory)
    with pytest.raises(ShapeError, match=r"\[B, T\]"):
        model(ids(1, 3)[0], memory)
    with pytest.raises(LimitError, match="at least 1"):
        model.new_memory(0)
    with pytest.raises(LimitError, match="capacity of 2,000"):
        model.new_memory(1, capacity=2000)
    after = memory.snapshot()
    assert after.lengths == before.lengths
    assert all(torch.equal(after.tensors[key], before.tensors[key]) for key in before.tensors)
