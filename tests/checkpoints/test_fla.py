"""flash-linear-attention's layout: read and written exactly, older files, every option, what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import statewell as sw
from statewell.config.layers import (
    AttnResSpec,
    LayerSpec,
    MLPSpec,
    ModelConfig,
    PlainStreamSpec,
    RMSNormSpec,
    SwiGLU,
)
from statewell.config.mixers import DeltaSpec, GatedDeltaSpec, KDASpec, LinearSpec, MixerSpec, RotaryAttentionSpec
from statewell.errors import CheckpointError, RequestError
from statewell.formats.families import describe, released_layout
from tests.checkpoints.released_fixture import randomised, save, stored

GOLDEN = Path(__file__).parent.parent / "golden"
FOLDERS = [*sorted(path.name for path in GOLDEN.glob("fla_*")), "qwen3_next"]
IDS = torch.arange(40).view(2, 20) % 31


def of(mixer: MixerSpec, architecture: str, *others: MixerSpec, **changes) -> ModelConfig:
    """A small model of `mixer`, then layers of `others`, then `mixer` again."""
    mlp = MLPSpec(width=20, activation=SwiGLU())
    config = ModelConfig(
        name="fla",
        architecture=architecture,
        vocab=31,
        width=24,
        layers=tuple(LayerSpec(mixer=spec, ffn=mlp) for spec in (mixer, *others, mixer)),
        stream=PlainStreamSpec(),
        norm=RMSNormSpec(eps=1e-6),
    )
    return dataclasses.replace(config, **changes)


LINEAR = LinearSpec(heads=4, key_dim=6, value_dim=6)
ROTARY = RotaryAttentionSpec(heads=4, kv_heads=2, head_dim=6, rotary_dim=6, theta=1e5, bias=True)
DELTA = DeltaSpec(heads=3, key_dim=8, value_dim=4)
GATED = GatedDeltaSpec(heads=2, value_heads=4, key_dim=8, value_dim=12, neg_eigval=True)
KDA = KDASpec(heads=2, key_dim=8, value_dim=6, gate_bias=True)
CONFIGS = {
    "elu": of(LINEAR, "linear_attention"),
    "narrow_ratio": of(LinearSpec(heads=1, key_dim=7, value_dim=5, feature_map="relu"), "linear_attention"),
    **{
        name: of(dataclasses.replace(LINEAR, feature_map=name, normalize=False), "linear_attention")
        for name in ("elementwise_product", "t2r", "hedgehog", "dpfp", "identity")
    },
    "tied": of(dataclasses.replace(LINEAR, feature_map="hedgehog", tied_maps=True), "linear_attention"),
    "grouped": of(
        dataclasses.replace(LINEAR, kv_heads=2, norm_q=True, norm_k=True, norm_weight=False), "linear_attention"
    ),
    "delta": of(DELTA, "deltanet"),
    "delta_bare": of(dataclasses.replace(DELTA, conv=None, beta=False, qk_activation="relu"), "deltanet"),
    "delta_all": of(
        dataclasses.replace(
            DELTA, conv=3, conv_bias=True, neg_eigval=True, gate=True, qk_activation="elu", qk_norm="sum"
        ),
        "deltanet",
        tied=True,
    ),
    "gated": of(GATED, "gated_deltanet"),
    "gated_bare": of(dataclasses.replace(GATED, conv=None, gate=False), "gated_deltanet"),
    # int(11 * (15 / 11)) is 14: the written ratio has to be the next number up
    "uneven": of(GatedDeltaSpec(heads=2, value_heads=2, key_dim=11, value_dim=15), "gated_deltanet"),
    "hybrid": of(GATED, "gated_deltanet", ROTARY, ROTARY),
    "kda": of(KDA, "kda"),
    "kda_all": of(
        dataclasses.replace(KDA, value_heads=4, conv_bias=True, neg_eigval=True, lower_bound=-5.0),
        "kda",
        dataclasses.replace(ROTARY, bias=False, kv_heads=4),
        stream=AttnResSpec(group=2),
    ),
    "full_residuals": of(KDA, "kda", stream=AttnResSpec(group=1, unit="sublayers")),
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_goldens_file_is_written_back_bit_for_bit(folder):
    model = sw.load(GOLDEN / folder)
    written, released = stored(model.config, model.state_dict()), load_file(GOLDEN / folder / "model.safetensors")
    assert written.keys() == released.keys()
    assert all(torch.equal(written[name], released[name]) for name in released)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_goldens_config_is_read_whole_and_written_to_the_same_model(folder):
    document = json.loads((GOLDEN / folder / "config.json").read_text())
    description = describe(document)
    family, written = released_layout(description.config)
    assert family.name == description.family.name
    assert description.token_ids.eos == (2,)
    # a field we write and the release has says the same, unless a default leaves it out
    both = {name for name in written if name in document and document[name] is not None}
    assert {name: written[name] for name in both} == {name: document[name] for name in both}


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_every_option_survives_writing_and_loading(name, tmp_path):
    config = CONFIGS[name]
    model = randomised(sw.build(config), seed=3)
    save(tmp_path, config, stored(config, model.state_dict()))
    loaded = sw.load(tmp_path)
    assert dataclasses.replace(loaded.config, name="fla", storage=config.storage) == config
    assert torch.equal(loaded(IDS), model(IDS))


@torch.no_grad()
def test_an_older_file_with_gate_and_up_as_one_is_split(tmp_path):
    config = CONFIGS["gated"]
    model = randomised(sw.build(config))
    tensors = stored(config, model.state_dict())
    for index in range(len(config.layers)):
        path = f"model.layers.{index}.mlp"
        up = tensors.pop(f"{path}.up_proj.weight")
        tensors[f"{path}.gate_proj.weight"] = torch.cat((tensors[f"{path}.gate_proj.weight"], up))
        # and the decay's projection under its name in NVIDIA's code
        tensors[f"model.layers.{index}.attn.gk_proj.weight"] = tensors.pop(f"model.layers.{index}.attn.a_proj.weight")
    assert torch.equal(sw.load(save(tmp_path, config, tensors))(IDS), model(IDS))


@torch.no_grad()
def test_tied_feature_maps_stored_twice_must_be_equal(tmp_path):
    config = CONFIGS["tied"]
    model = randomised(sw.build(config))
    tensors = stored(config, model.state_dict())
    for name in [name for name in tensors if ".feature_map_q." in name]:
        tensors[name.replace("_map_q", "_map_k")] = tensors[name].clone()
    assert torch.equal(sw.load(save(tmp_path, config, tensors))(IDS), model(IDS))
    tensors["model.layers.0.attn.feature_map_k.layer.bias"] += 1
    with pytest.raises(CheckpointError, match="feature_map_k"):
        sw.load(save(tmp_path, config, tensors))


def test_an_inner_width_that_the_config_leaves_open_is_flas():
    document = {"model_type": "delta_net", "hidden_size": 2048, "intermediate_size": None, "vocab_size": 32000}
    config = describe(document).config
    assert (len(config.layers), config.layers[0].ffn.width) == (24, 5632)
    assert config.layers[0].mixer == DeltaSpec(heads=16, key_dim=128, value_dim=128)


@pytest.mark.parametrize(
    ("kind", "depth", "mixer"),
    [
        (
            "linear_attn",
            24,
            LinearSpec(heads=4, key_dim=512, value_dim=512, feature_map="elementwise_product", normalize=False),
        ),
        ("delta_net", 24, DeltaSpec(heads=16, key_dim=128, value_dim=128)),
        ("gated_deltanet", 21, GatedDeltaSpec(heads=6, value_heads=6, key_dim=256, value_dim=512)),
        ("kda", 24, KDASpec(heads=16, key_dim=128, value_dim=128, gate_bias=True)),
    ],
)
def test_fields_that_a_file_lacks_have_flas_defaults(kind, depth, mixer):
    config = describe({"model_type": kind}).config
    assert (config.width, config.vocab, len(config.layers)) == (2048, 32000, depth)
    assert {layer.mixer for layer in config.layers} == {mixer}


DOCUMENT = {"hidden_size": 48, "num_hidden_layers": 2, "vocab_size": 31, "num_heads": 3, "intermediate_size": 20}


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("delta_net", {"qk_norm": "l1"}, "qk_norm is 'l1'; statewell offers l2, sum"),
        ("delta_net", {"qk_activation": "gelu"}, "qk_activation is 'gelu'"),
        ("delta_net", {"expand_k": 0.3}, "expand_k makes 14 channels"),
        ("delta_net", {"attn_mode": "chunk", "use_forget_gate": True}, "use_forget_gate is True, which statewell"),
        ("delta_net", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("delta_net", {"attnres_block_size": 3}, "attnres_block_size is 3"),
        ("delta_net", {"norm_first": False}, "norm_first is False"),
        ("linear_attn", {"feature_map": "performer"}, "feature_map is 'performer'"),
        ("linear_attn", {"output_norm": "identity"}, "output_norm is 'identity'"),
        ("gated_deltanet", {"expand_k": 0.75}, "expand_k is 0.75"),
        ("gated_deltanet", {"num_v_heads": 4, "head_dim": 16}, "4 value heads over 3 heads"),
        ("kda", {"safe_gate": True, "head_dim": 16}, "lower_bound is missing"),
        ("kda", {"lower_bound": 5.0, "head_dim": 16}, "lower_bound is 5.0"),
        ("kda", {"attn": {"layers": [1], "num_heads": 4, "window_size": 512}}, "attn: window_size is 512"),
        ("kda", {"attn": {"layers": [2], "num_heads": 4}}, "attn: layers must be a list of layers from 0 to 1"),
        ("kda", {"attn": {"layers": [1], "num_heads": 5}}, "attn: num_heads is 5"),
        ("kda", {"attn": {"layers": [1], "num_heads": 4, "rope_scaling": "yarn"}}, "attn: rope_scaling is 'yarn'"),
        ("kda", {"num_heads": True}, "num_heads is True"),
        ("kda", {"eos_token_id": 31}, "eos_token_id is 31"),
    ],
)
def test_what_is_not_offered_is_refused_by_its_name(kind, fields, words):
    with pytest.raises(CheckpointError) as caught:
        describe({"model_type": kind, **DOCUMENT, **fields})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (of(dataclasses.replace(KDA, gate_bias=False), "kda"), "gate_bias"),
        (of(KDA, "kda", DELTA), "one kind of recurrent mixer"),
        (of(GATED, "gated_deltanet", ROTARY, dataclasses.replace(ROTARY, theta=2.0)), "one kind of attention"),
        (of(GATED, "gated_deltanet", dataclasses.replace(ROTARY, gate=True)), "gate = True"),
        (of(KDA, "kda", stream=AttnResSpec(group=3, unit="sublayers")), "attnres_block_size is 3"),
    ],
)
def test_what_the_layout_has_no_words_for_is_said(config, words):
    with pytest.raises(RequestError) as caught:
        released_layout(config)
    assert words in str(caught.value)
