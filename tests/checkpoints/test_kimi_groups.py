"""Kimi's routing inside groups of experts, against transformers."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import statewell as sw
from statewell.architectures import preset
from statewell.config.layers import LatentMoESpec, MoESpec
from statewell.errors import CheckpointError
from statewell.formats.families import describe, released_layout
from tests.tolerances import assert_close, relative_rms

DOCUMENT = {
    "model_type": "kimi_linear",
    "vocab_size": 67,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 24,
    "num_experts": 12,
    "num_experts_per_token": 3,
    "num_shared_experts": 1,
    "routed_scaling_factor": 2.446,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "linear_attn_config": {
        "kda_layers": [1, 2],
        "full_attn_layers": [3],
        "num_heads": 2,
        "head_dim": 16,
        "short_conv_kernel_size": 4,
    },
}


@pytest.mark.parametrize(("groups", "kept", "renormalize"), [(4, 1, True), (6, 3, False), (2, 2, True)])
@torch.no_grad()
def test_grouped_routing_equals_transformers(tmp_path, groups, kept, renormalize):
    from transformers import KimiLinearConfig, KimiLinearForCausalLM

    described = {**DOCUMENT, "n_group": groups, "topk_group": kept, "norm_topk_prob": renormalize}
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "q_lora_rank": None}
    model = KimiLinearForCausalLM(KimiLinearConfig(**described, **special)).eval()
    generator = torch.Generator().manual_seed(groups)
    for name, tensor in model.state_dict().items():
        if tensor.ndim >= 2 and "A_log" not in name:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * tensor.shape[-1] ** -0.5)
        elif name.endswith("e_score_correction_bias"):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    model.save_pretrained(tmp_path)
    ours = sw.load(tmp_path)
    spec = ours.config.layers[1].ffn
    assert isinstance(spec, MoESpec)
    assert (spec.groups, spec.renormalize) == (1 if kept == groups else groups, renormalize)
    text = torch.arange(80).view(2, 40) % 67
    assert_close(ours(text), model(text).logits, "model")
    if kept < groups:
        whole = dataclasses.replace(spec, groups=1, top_groups=1)
        layers = tuple(
            dataclasses.replace(layer, ffn=whole) if layer.ffn == spec else layer for layer in ours.config.layers
        )
        ungrouped = sw.build(dataclasses.replace(ours.config, layers=layers))
        ungrouped.load_state_dict(ours.state_dict())
        assert relative_rms(ungrouped(text), ours(text)) > 1e-3, "the groups decide nothing here"


@pytest.mark.parametrize("name", ["kimi_linear", "kimi_k3"])
def test_groups_are_written_and_read_back(name):
    config = preset(name, "nano")

    def grouped(layer):
        if not isinstance(layer.ffn, MoESpec | LatentMoESpec):
            return layer
        return dataclasses.replace(layer, ffn=dataclasses.replace(layer.ffn, groups=4, top_groups=2))

    config = dataclasses.replace(config, layers=tuple(grouped(layer) for layer in config.layers))
    _, document = released_layout(config)
    assert describe(document).config.layers == config.layers


def test_groups_that_cannot_be_are_refused():
    with pytest.raises(CheckpointError, match="multiple of groups, 5"):
        describe({**DOCUMENT, "num_expert_group": 5, "topk_group": 2})
