"""Against transformers, live: their saved folder in ours, our exported folder in theirs, at several shapes."""

from __future__ import annotations

import json

import pytest
import torch

import statewell as sw
from statewell.checkpoints.export import export
from statewell.errors import CheckpointError
from statewell.formats.families import describe
from tests.tolerances import assert_close

GPT2 = {"model_type": "gpt2", "vocab_size": 67, "n_positions": 48, "bos_token_id": 1, "eos_token_id": 2}
GPT2_SHAPES = {
    "four_heads": {"n_embd": 36, "n_head": 4, "n_layer": 3},
    "one_layer": {"n_embd": 24, "n_head": 2, "n_layer": 1, "n_inner": 50},
    "untied": {"n_embd": 48, "n_head": 6, "n_layer": 2, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-6},
}
KIMI = {
    **{"model_type": "kimi_linear", "vocab_size": 67, "intermediate_size": 40, "num_hidden_layers": 4},
    **{"moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_token": 3, "num_shared_experts": 1},
    **{"routed_scaling_factor": 2.446, "kv_lora_rank": 20, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8},
    **{"v_head_dim": 12, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "model_max_length": 128},
}
LINEAR = {"kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}
KIMI_SHAPES = {
    "as_released": {"hidden_size": 48, **HEADS, "linear_attn_config": LINEAR},
    "not_renormalised": {
        **{
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "moe_renormalize": False,
            "first_k_dense_replace": 2,
        },
        "linear_attn_config": {**LINEAR, "kda_layers": [1, 3], "full_attn_layers": [2, 4], "num_heads": 2},
    },
    "grouped": {
        **{
            "hidden_size": 40,
            **HEADS,
            "num_expert_group": 4,
            "topk_group": 2,
            "num_shared_experts": 2,
        },
        **{"q_lora_rank": 28, "linear_attn_config": {**LINEAR, "head_dim": 8}},
    },
}
SHAPES = {
    **{f"gpt2_{name}": {**GPT2, **shape} for name, shape in GPT2_SHAPES.items()},
    **{f"kimi_linear_{name}": {**KIMI, **shape} for name, shape in KIMI_SHAPES.items()},
}


@torch.no_grad()
def theirs(shape: str, seed: int):
    """Their model, its matrices large enough for attention to be uneven."""
    from transformers import AutoConfig, AutoModelForCausalLM

    described = dict(SHAPES[shape])
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(described.pop("model_type"), **described)).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if tensor.ndim >= 2 and "A_log" not in name:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * tensor.shape[-1] ** -0.5)
        elif "correction_bias" in name:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
    return model


def ids() -> torch.Tensor:
    return torch.randint(0, 67, (2, 48), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_their_folder_in_ours_gives_their_logits(tmp_path, shape, seed):
    model = theirs(shape, seed)
    model.save_pretrained(tmp_path)
    ours, text = sw.load(tmp_path), ids()
    # their recurrence is float32 whatever the model is, so float32 is what can be compared live; the goldens do float64
    assert_close(ours(text), model(text).logits, "model")
    memory = ours.new_memory(2)
    pieces = [ours(part, memory) for part in text.split(7, dim=1)]
    assert_close(torch.cat(pieces, dim=1), model(text).logits, "model")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_our_export_in_theirs_gives_our_logits(tmp_path, shape, seed):
    from transformers import AutoModelForCausalLM

    ours, text = sw.build(describe(SHAPES[shape]).config, seed=seed), ids()
    export(ours, tmp_path / "out")
    opened, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_close(opened(text).logits, ours(text), "model")


@torch.no_grad()
def test_a_tied_kimi_linear_opens_in_theirs_which_does_not_tie(tmp_path):
    from transformers import AutoModelForCausalLM

    config = describe({**SHAPES["kimi_linear_as_released"], "tie_word_embeddings": True}).config
    ours, text = sw.build(config, seed=2), ids()
    assert ours.head is None
    export(ours, tmp_path / "out")
    assert_close(AutoModelForCausalLM.from_pretrained(tmp_path / "out")(text).logits, ours(text), "model")
    assert torch.equal(sw.load(tmp_path / "out")(text), ours(text))


@torch.no_grad()
def test_gpt2_in_float64_gives_their_logits_exactly(tmp_path):
    model = theirs("gpt2_four_heads", 3).double()
    model.save_pretrained(tmp_path)
    assert_close(sw.load(tmp_path)(ids()), model(ids()).logits, "model")


@pytest.mark.parametrize("name", ["gpt2:nano", "kimi_linear:nano"])
@torch.no_grad()
def test_a_shipped_model_opens_in_theirs_with_its_tokenizer(tmp_path, name):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ours = sw.load(name, dtype=torch.float32)
    export(ours, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "def résumé(self):\n\treturn '𝕏'  # Ā\n"
    read = tokenizer(text, return_tensors="pt")["input_ids"]
    assert read[0].tolist() == list(text.encode())
    assert tokenizer.decode(read[0]) == text
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert_close(opened(read).logits, ours(read), "model")
    assert opened.generation_config.eos_token_id in (0, [0])


@torch.no_grad()
def test_a_half_precision_export_keeps_what_steers_the_gates(tmp_path):
    from transformers import AutoModelForCausalLM

    ours = sw.build("kimi_linear:nano", seed=5)
    ours.blocks[1].ffn.router.correction_bias.copy_(torch.randn(8))
    export(ours, tmp_path / "out", torch.bfloat16)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").state_dict()
    assert opened["model.embed_tokens.weight"].dtype == torch.bfloat16
    mixer, router = ours.blocks[0].mixer, ours.blocks[1].ffn.router
    assert torch.equal(opened["model.layers.0.self_attn.forget_gate.A_log"].float().flatten(), mixer.A_log.bfloat16())
    assert torch.equal(opened["model.layers.1.mlp.gate.e_score_correction_bias"], router.correction_bias)


def test_a_pickle_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**GPT2, **GPT2_SHAPES["four_heads"]}))
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle, which can run code"):
        sw.load(tmp_path)
