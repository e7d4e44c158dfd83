"""The goldens' released weights put into our modules: a test's reader, strict about every tensor, of four model
folders."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from statewell.architectures.gpt2 import gpt2
from statewell.config.layers import (
    AttnResSpec,
    LatentMoESpec,
    LayerSpec,
    MLPSpec,
    ModelConfig,
    MoESpec,
    PlainStreamSpec,
    RMSNormSpec,
    SiTU,
    SwiGLU,
)
from statewell.config.mixers import KDASpec, MLASpec
from statewell.models.backbone import LanguageModel

GOLDEN = Path(__file__).parent.parent / "golden"
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)

GPT2_NAMES = [
    (r"^wte\.weight$", "embedding.weight"),
    (r"^wpe\.weight$", "positions.weight"),
    (r"^ln_f\.", "norm."),
    (r"^h\.(\d+)\.ln_1\.", r"blocks.\1.mixer_norm."),
    (r"^h\.(\d+)\.ln_2\.", r"blocks.\1.ffn_norm."),
    (r"^h\.(\d+)\.attn\.c_attn\.", r"blocks.\1.mixer.qkv_proj."),
    (r"^h\.(\d+)\.attn\.c_proj\.", r"blocks.\1.mixer.o_proj."),
    (r"^h\.(\d+)\.mlp\.c_fc\.", r"blocks.\1.ffn.up_proj."),
    (r"^h\.(\d+)\.mlp\.c_proj\.", r"blocks.\1.ffn.down_proj."),
]
KIMI_NAMES = [
    (r"^(language_model\.)?(model\.)?", ""),
    (r"^embed_tokens\.", "embedding."),
    (r"^lm_head\.", "head."),
    (r"^output_attn_res_norm\.weight", "output_site.norm_weight"),
    (r"^output_attn_res_proj\.weight", "output_site.query"),
    (r"^layers\.(\d+)\.", r"blocks.\1."),
    (r"\.input_layernorm\.", ".mixer_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"\.self_attention_res_norm\.weight", ".mixer_site.norm_weight"),
    (r"\.self_attention_res_proj\.weight", ".mixer_site.query"),
    (r"\.mlp_res_norm\.weight", ".ffn_site.norm_weight"),
    (r"\.mlp_res_proj\.weight", ".ffn_site.query"),
    (r"\.self_attn\.", ".mixer."),
    (r"_conv1d\.", "_conv."),
    (r"_a_layernorm\.", "_a_norm."),
    (r"\.kv_a_proj_with_mqa\.", ".kv_a_proj."),
    (r"\.(mlp|block_sparse_moe)\.", ".ffn."),
    (r"\.ffn\.gate\.weight", ".ffn.router.weight"),
    (r"\.ffn\.gate\.e_score_correction_bias", ".ffn.router.correction_bias"),
    (r"\.shared_experts\.", ".shared."),
    (r"\.routed_expert_(down|up)_proj\.", r".latent_\1_proj."),
    (r"\.routed_expert_norm\.", ".latent_norm."),
]


def outputs(folder: str, name: str = "outputs") -> dict[str, Tensor]:
    """A golden's tensors, keyed `case/name`."""
    return load_file(GOLDEN / folder / f"{name}.safetensors")


def our_name(released: str) -> str:
    """Our state_dict's name for a released tensor (experts keep their index: `experts.E.w1.weight`)."""
    released = released.removeprefix("transformer.")
    for pattern, replacement in GPT2_NAMES if re.match(r"(h\.\d|w[tp]e|ln_f)", released) else KIMI_NAMES:
        released = re.sub(pattern, replacement, released)
    return released


def our_value(name: str, value: Tensor, config: ModelConfig) -> Tensor:
    """A released tensor in our shape: GPT-2's [in, out] turned, K3's padded A_log cut, [D, 1, W] and [1, D]
    squeezed."""
    if config.architecture == "gpt2" and value.ndim == 2 and "blocks." in name:
        return value.T
    if name.endswith("A_log"):
        heads = next(layer.mixer.heads for layer in config.layers if isinstance(layer.mixer, KDASpec))
        return value.flatten()[:heads]
    if "_conv." in name:
        return value.squeeze(1)
    return value.squeeze(0) if name.endswith(".query") else value


def released_model(
    folder: str | Path,
    dtype: torch.dtype = torch.float64,
    recompute: bool = False,
    described: dict | None = None,
) -> LanguageModel:
    """A golden's model (or one saved at a path), in `dtype`; every tensor of the file is used or is a GPT-2 mask
    buffer.

    described: the released config keys, where the folder's own config.json does not use them.
    """
    path = GOLDEN / folder
    document = described or json.loads((path / "config.json").read_text())
    config = (
        _gpt2_config(document)
        if document["model_type"] == "gpt2"
        else _kimi_config(document.get("text_config", document))
    )
    model = LanguageModel(config, recompute).to(dtype)
    tensors = _unpacked(load_file(path / "model.safetensors"))
    ours: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for released, value in tensors.items():
        if released.endswith(".attn.bias"):
            continue
        name = our_name(released)
        expert = re.match(r"(.*\.experts)\.(\d+)\.(w\d)\.weight", name)
        if expert:
            experts.setdefault(f"{expert[1]}.{expert[3]}", {})[int(expert[2])] = value.to(dtype)
        else:
            ours[name] = our_value(name, value, config).to(dtype)
    ours |= {name: torch.stack([by_index[i] for i in range(len(by_index))]) for name, by_index in experts.items()}
    model.load_state_dict(ours, strict=True)
    return model


def _unpacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """MXFP4 pairs (`weight_packed`, `weight_scale`) as float64 weights, low nibble first; all else as it is."""
    plain = {
        name: value for name, value in tensors.items() if "weight_packed" not in name and "weight_scale" not in name
    }
    for name, packed in tensors.items():
        if name.endswith("weight_packed"):
            nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
            scale = 2.0 ** (tensors[name.replace("packed", "scale")].double() - 127)
            plain[name.replace("_packed", "")] = E2M1[nibbles.long()] * scale.repeat_interleave(32, dim=-1)
    return plain


def _gpt2_config(c: dict) -> ModelConfig:
    return gpt2(
        "golden",
        vocab=c["vocab_size"],
        width=c["n_embd"],
        depth=c["n_layer"],
        heads=c["n_head"],
        context=c["n_positions"],
    )


def _kimi_config(c: dict) -> ModelConfig:
    linear, k3 = c["linear_attn_config"], "attn_res_block_size" in c
    activation = SiTU() if c["hidden_act"] == "situ" else SwiGLU()
    kda = KDASpec(
        heads=linear["num_heads"],
        key_dim=linear["head_dim"],
        value_dim=linear["head_dim"],
        output_gate="full" if linear.get("use_full_rank_gate") else "low_rank",
        lower_bound=linear.get("gate_lower_bound"),
    )
    mla = MLASpec(
        heads=c["num_attention_heads"],
        q_rank=c["q_lora_rank"],
        kv_rank=c["kv_lora_rank"],
        nope_dim=c["qk_nope_head_dim"],
        rope_dim=c["qk_rope_head_dim"],
        value_dim=c["v_head_dim"],
        gate=c.get("mla_use_output_gate", False),
    )
    experts = {
        "experts": c["num_experts"],
        "top_k": c["num_experts_per_token"],
        "width": c["moe_intermediate_size"],
        "shared_width": c["num_shared_experts"] * c["moe_intermediate_size"],
        "activation": activation,
        "scaling": c["routed_scaling_factor"],
        "renormalize": c["moe_renormalize"],
    }
    moe = LatentMoESpec(**experts, latent=c["routed_expert_hidden_size"]) if k3 else MoESpec(**experts)
    dense = MLPSpec(width=c["intermediate_size"], activation=activation)
    layers = tuple(
        LayerSpec(
            mixer=kda if index + 1 in linear["kda_layers"] else mla,
            ffn=dense if index < c["first_k_dense_replace"] else moe,
        )
        for index in range(c["num_hidden_layers"])
    )
    return ModelConfig(
        name="golden",
        architecture="kimi_k3" if k3 else "kimi_linear",
        vocab=c["vocab_size"],
        width=c["hidden_size"],
        layers=layers,
        stream=AttnResSpec(group=c["attn_res_block_size"]) if k3 else PlainStreamSpec(),
        norm=RMSNormSpec(eps=c["rms_norm_eps"]),
    )
