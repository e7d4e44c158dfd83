"""config.json read and written: every field accounted for, both ways, for GPT-2, Kimi Linear and K3."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statewell.architectures import RELEASED, SIZES, preset
from statewell.config.layers import AttnResSpec, LatentMoESpec, MoESpec
from statewell.errors import CheckpointError, StatewellError
from statewell.formats.families import describe, read_object, released_layout

GOLDEN = Path(__file__).parent.parent / "golden"
FOLDERS = ("gpt2", "kimi_linear", "kimi_k3", "kimi_k3_dense")
OURS = ("gpt2", "kimi_linear", "kimi_k3")
KIMI_LINEAR = {
    **{"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16"},
    **{"vocab_size": 163840, "hidden_size": 2304, "head_dim": 72, "num_hidden_layers": 27, "intermediate_size": 9216},
    **{"num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu", "rms_norm_eps": 1e-5},
    **{"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"mla_use_nope": True, "rope_theta": 10000, "rope_scaling": None, "num_experts": 256},
    **{"num_experts_per_token": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024, "moe_layer_freq": 1},
    **{"first_k_dense_replace": 1, "moe_router_activation_func": "sigmoid", "moe_renormalize": True},
    **{"routed_scaling_factor": 2.446, "use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1},
    **{"num_nextn_predict_layers": 0, "model_max_length": 1048576, "initializer_range": 0.02},
    **{"tie_word_embeddings": False, "bos_token_id": 163584, "eos_token_id": 163586, "pad_token_id": 163839},
    "use_cache": True,
    "linear_attn_config": {
        **{"kda_layers": [i for i in range(1, 27) if i % 4], "full_attn_layers": [4, 8, 12, 16, 20, 24, 27]},
        **{"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4},
    },
}
GPT2 = {
    **{"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_ctx": 1024, "n_embd": 768, "n_layer": 12},
    **{"n_head": 12, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1},
    **{"embd_pdrop": 0.1, "resid_pdrop": 0.1, "initializer_range": 0.02, "bos_token_id": 50256, "eos_token_id": 50256},
    **{"summary_type": "cls_index", "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
}


def golden(folder: str) -> dict:
    return read_object(GOLDEN / folder / "config.json")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_goldens_config_is_read_whole_and_written_to_the_same_model(folder):
    document = golden(folder)
    description = describe(document)
    family, written = released_layout(description.config)
    assert family is description.family
    for ours, theirs in ((written, document), (written.get("text_config", {}), document.get("text_config", {}))):
        both = {name for name in ours if theirs.get(name) is not None} - {"text_config", "quantization_config"}
        assert {name: ours[name] for name in both} == {name: theirs[name] for name in both}


@pytest.mark.parametrize(
    ("document", "name"), [(KIMI_LINEAR, "kimi-linear-48b-a3b"), (GPT2, "gpt2")], ids=["kimi_linear", "gpt2"]
)
def test_a_released_config_is_the_preset(document, name):
    description = describe(document)
    assert description.preset == name
    stored = RELEASED[name].storage
    assert replace(description.config, storage=stored) == RELEASED[name]
    assert description.config.storage == stored
    assert "attn_pdrop" in description.unread or "rope_theta" in description.unread


@pytest.mark.parametrize("name", [*RELEASED, *(f"{family}:{size}" for family in OURS for size in SIZES)])
def test_every_model_of_the_three_is_written_and_read_back(name):
    config = RELEASED.get(name) or preset(*name.split(":"))
    family, document = released_layout(config)
    assert family.name == config.architecture
    read = describe(json.loads(json.dumps(document)))
    assert replace(read.config, name=name, storage=config.storage) == config
    assert read.preset == (name if name in RELEASED else None)


def test_k3s_packed_experts_and_padding_are_storage():
    storage = describe(released_layout(RELEASED["kimi-k3"])[1] | {"dtype": "bfloat16"}).config.storage
    assert (storage.experts, storage.a_log_entries) == ("mxfp4", 128)
    text = golden("kimi_k3")["text_config"]
    assert describe(text).family.name == "kimi_k3"
    assert describe(text).config.storage == RELEASED["kimi-k3"].storage.__class__(
        dtype="bf16", fp32=RELEASED["kimi-k3"].storage.fp32, experts="mxfp4", a_log_entries=16
    )


def test_token_ids_are_the_outer_ones_or_the_text_sides():
    document = golden("kimi_k3")
    assert describe(document).token_ids.eos == (151,)
    inner = {name: value for name, value in document.items() if "token_id" not in name}
    assert describe(inner).token_ids.eos == (151,)
    assert describe({**document, "eos_token_id": [3, 4]}).token_ids.eos == (3, 4)
    assert describe({**golden("gpt2"), "pad_token_id": -1}).token_ids.pad is None


def test_groups_of_experts_are_read_under_both_names_unless_switched_off():
    grouped = {**KIMI_LINEAR, "num_expert_group": 8, "topk_group": 4}
    theirs = {name: value for name, value in grouped.items() if name != "num_expert_group"} | {"n_group": 8}
    for document, groups in ((grouped, (8, 4)), (theirs, (8, 4)), ({**grouped, "use_grouped_topk": False}, (1, 1))):
        spec = describe(document).config.layers[1].ffn
        assert isinstance(spec, MoESpec)
        assert (spec.groups, spec.top_groups) == groups


def test_a_shared_expert_of_any_width_is_written_at_a_whole_number_of_experts():
    config = preset("kimi_k3", "tiny")
    spec = config.layers[1].ffn
    assert isinstance(spec, LatentMoESpec)
    assert (spec.shared_width, spec.width) == (120, 64)
    text = released_layout(config)[1]["text_config"]
    assert isinstance(text, dict)
    assert (text["num_shared_experts"], text["statewell_shared_width"]) == (2, 120)


REFUSED = [
    (GPT2, {"activation_function": "relu"}, "activation_function is 'relu'; statewell's GPT-2 has gelu_new"),
    (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    (GPT2, {"scale_attn_weights": False}, "scale_attn_weights is False"),
    (GPT2, {"add_cross_attention": True}, "add_cross_attention is True"),
    (GPT2, {"n_head": 7}, "n_head is 7, which does not divide n_embd = 768"),
    (GPT2, {"n_embd": None}, "n_embd is missing"),
    (GPT2, {"n_layer": 10**9}, "n_layer is 1000000000"),
    (GPT2, {"n_layer": True}, "n_layer is True"),
    (GPT2, {"vocab_size": 2**40}, "vocab_size is"),
    (GPT2, {"num_hidden_layers": 13}, "num_hidden_layers is 13 and n_layer is 12; they must agree"),
    (GPT2, {"dtype": "float8"}, "dtype is 'float8'"),
    (GPT2, {"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}, which statewell does not know"),
    (GPT2, {"model_type": "llama"}, "model_type is 'llama', which statewell does not load"),
    (KIMI_LINEAR, {"mla_use_nope": False}, "mla_use_nope is False"),
    (KIMI_LINEAR, {"num_key_value_heads": 8}, "num_key_value_heads is 8"),
    (KIMI_LINEAR, {"moe_router_activation_func": "softmax"}, "moe_router_activation_func is 'softmax'"),
    (KIMI_LINEAR, {"topk_method": "greedy"}, "topk_method is 'greedy'"),
    (KIMI_LINEAR, {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers is 1"),
    (KIMI_LINEAR, {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    (KIMI_LINEAR, {"attention_bias": True}, "attention_bias is True"),
    (KIMI_LINEAR, {"linear_attn_config": {**KIMI_LINEAR["linear_attn_config"], "kda_layers": [1]}}, "do not name each"),
    (
        KIMI_LINEAR,
        {"linear_attn_config": {**KIMI_LINEAR["linear_attn_config"], "safe": True}},
        "linear_attn_config: safe",
    ),
    (KIMI_LINEAR, {"linear_attn_config": None}, "linear_attn_config is missing"),
    (KIMI_LINEAR, {"mlp_layer_types": ["dense"] * 27}, "mlp_layer_types names other layers"),
    (KIMI_LINEAR, {"num_experts_per_token": 257}, "chooses 257 of 256 experts"),
    (KIMI_LINEAR, {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
]


@pytest.mark.parametrize(
    ("document", "fields", "words"), REFUSED, ids=[next(iter(f)) + str(i) for i, (_, f, _) in enumerate(REFUSED)]
)
def test_what_is_not_offered_is_refused_by_its_name(document, fields, words):
    with pytest.raises(CheckpointError) as caught:
        describe({**document, **fields})
    assert words in str(caught.value)


def test_k3s_quantisation_is_the_only_one_offered():
    document = golden("kimi_k3")
    document["text_config"]["quantization_config"]["format"] = "nvfp4-pack-quantized"
    with pytest.raises(CheckpointError, match="text_config: quantization_config: format is 'nvfp4-pack-quantized'"):
        describe(document)


def test_a_group_of_attention_residuals_in_other_units_has_no_words_in_k3s_config():
    config = preset("kimi_k3", "nano")
    with pytest.raises(StatewellError, match="stream"):
        released_layout(replace(config, stream=AttnResSpec(group=3, unit="sublayers")))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(FOLDERS), st.data())
def test_any_value_in_any_field_is_read_or_refused_as_ours(folder, data):
    document = golden(folder)
    place = document
    if "text_config" in document and data.draw(st.booleans()):
        place = document["text_config"]
    name = data.draw(st.sampled_from(sorted(place)))
    place[name] = data.draw(JSON)
    with contextlib.suppress(StatewellError):
        describe(document)
