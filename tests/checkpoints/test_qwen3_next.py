"""Qwen3-Next's layout: against transformers at random shapes, both ways, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch

import statewell as sw
from statewell.checkpoints.export import export
from statewell.config.mixers import GatedDeltaSpec, RotaryAttentionSpec
from statewell.errors import CheckpointError
from statewell.formats.families import describe
from tests.tolerances import assert_close

BASE = {
    "vocab_size": 67,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "linear_key_head_dim": 8,
    "linear_num_key_heads": 2,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "shared_expert_intermediate_size": 28,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SHAPES = {
    "as_released": {
        **{"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
        **{"linear_num_value_heads": 4, "linear_value_head_dim": 12},
    },
    "one_key_head_dense_layers": {
        **{"hidden_size": 32, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24},
        **{"linear_num_value_heads": 6, "linear_value_head_dim": 8, "norm_topk_prob": False},
        **{"mlp_only_layers": [1], "rms_norm_eps": 1e-5, "linear_conv_kernel_dim": 3},
    },
    "with_biases_tied": {
        **{"hidden_size": 40, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8},
        **{"linear_num_value_heads": 2, "linear_value_head_dim": 16, "attention_bias": True, "num_hidden_layers": 3},
        **{"tie_word_embeddings": True, "decoder_sparse_step": 2, "num_experts_per_tok": 1},
        **{"layer_types": ["full_attention", "linear_attention", "full_attention"]},
        **{"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}},
    },
}


@torch.no_grad()
def theirs(shape: str, seed: int):
    """Their model, every tensor drawn at random."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    model = Qwen3NextForCausalLM(Qwen3NextConfig(**{**BASE, **SHAPES[shape]}, attn_implementation="eager")).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        spread = tensor.shape[-1] ** -0.5 if tensor.ndim >= 2 and "conv1d" not in name else 0.5
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * spread)
    return model


def ids(rows: int, tokens: int) -> torch.Tensor:
    return torch.randint(0, 67, (rows, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_their_file_in_ours_gives_their_logits(tmp_path, shape, seed):
    model, text = theirs(shape, seed), ids(2, 75)
    model.save_pretrained(tmp_path)
    ours = sw.load(tmp_path)
    expected = model(text).logits
    # their recurrence is float32 whatever the model is, so float32 is what can be compared live; the goldens do float64
    assert_close(ours(text), expected, "model")
    memory = ours.new_memory(2)
    pieces = [ours(part, memory) for part in text.split(7, dim=1)]
    assert_close(torch.cat(pieces, dim=1), expected, "model")


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_our_file_in_theirs_gives_our_logits(tmp_path, shape):
    from transformers import AutoModelForCausalLM

    config = describe({"model_type": "qwen3_next", **BASE, **SHAPES[shape]}).config
    ours, text = sw.build(config, seed=4), ids(2, 75)
    for name, tensor in ours.state_dict().items():
        if name.endswith(("norm.weight", "bias")):
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(5)) * 0.3)
    export(ours, tmp_path / "exported")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", attn_implementation="eager")
    assert_close(ours(text), loaded(text).logits, "model")


def test_the_released_config_is_read_as_the_model_it_is():
    config = describe(
        {
            **{"model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48},
            **{"full_attention_interval": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256},
            **{"partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_scaling": None, "hidden_act": "silu"},
            **{"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128},
            **{"linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 512, "mlp_only_layers": []},
            **{"num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512},
            **{
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "max_position_embeddings": 262144,
                "dtype": "bfloat16",
            },
        }
    ).config
    full = [index for index, layer in enumerate(config.layers) if isinstance(layer.mixer, RotaryAttentionSpec)]
    assert full == list(range(3, 48, 4))
    mixer = config.layers[3].mixer
    assert isinstance(mixer, RotaryAttentionSpec)
    assert (mixer.rotary_dim, mixer.theta, mixer.gate) == (64, 1e7, True)
    assert isinstance(config.layers[0].mixer, GatedDeltaSpec)
    plan = sw.plan(config)
    assert round(plan.parameters.total / 1e9, 1) == 79.7
    assert plan.memory.bytes_per_token == 12 * 2 * 2 * 256 * 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling is"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters: rope_type is 'yarn'"),
        ({"rope_parameters": {"rope_type": "default", "factor": 4.0}}, "rope_parameters: factor is 4.0"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"layer_types": ["linear_attention"]}, "layer_types must name"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types must name"),
        ({"num_experts_per_tok": 9}, "chooses 9 of 8 experts"),
        ({"partial_rotary_factor": 0.2}, "rotary_dim is 3"),
        ({"linear_num_value_heads": 3}, "3 value heads over 2 heads"),
        ({"mlp_only_layers": ["1"]}, "mlp_only_layers is not a list of int"),
        ({"use_gated_norm": True}, "use_gated_norm is True"),
        ({"pad_token_id": 99}, "pad_token_id is 99"),
    ],
)
def test_what_is_not_offered_is_refused_by_its_name(fields, words):
    document = {"model_type": "qwen3_next", **BASE, **SHAPES["as_released"], **fields}
    with pytest.raises(CheckpointError) as caught:
        describe(json.loads(json.dumps(document)))
    assert words in str(caught.value)
