"""Writing the fields that `kimi.read_layers` reads, in the released configs' words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from statewell.config.layers import Activation, LatentMoESpec, MLPSpec, ModelConfig, MoESpec, RMSNormSpec, SiTU
from statewell.config.load import Json
from statewell.config.mixers import KDASpec, MLASpec
from statewell.errors import RequestError
from statewell.formats.kimi import SHARED_WIDTH, padded_shared_width

Spec = TypeVar("Spec")


def write_layers(config: ModelConfig) -> dict[str, Json]:
    """The fields of every layer. Raises RequestError where there is not one kind each of KDA, MLA and dense network,
    and at most one of experts; their order is checked by reading the result back."""
    if not isinstance(config.norm, RMSNormSpec):
        raise RequestError("the layout has RMSNorm")
    mixers = [layer.mixer for layer in config.layers]
    ffns = [layer.ffn for layer in config.layers]
    dense, experts = _kinds(ffns, MLPSpec), [*_kinds(ffns, MoESpec), *_kinds(ffns, LatentMoESpec)]
    if len(experts) > 1:
        raise RequestError("the layout has one kind of experts")
    mlp = _one(dense, "dense network")
    fields: dict[str, Json] = {
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "intermediate_size": mlp.width,
        "num_hidden_layers": len(ffns),
        "first_k_dense_replace": next((i for i, ffn in enumerate(ffns) if ffn != mlp), len(ffns)),
        "moe_layer_freq": 1,
        **_activation(mlp.activation),
        **_latent_attention(_one(_kinds(mixers, MLASpec), "MLA")),
        "linear_attn_config": _linear_attention(config, _one(_kinds(mixers, KDASpec), "KDA")),
        "rms_norm_eps": config.norm.eps,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tied,
        "num_nextn_predict_layers": 0,
        "use_cache": True,
    }
    for spec in experts:
        fields |= _experts(spec)
    return fields


def _kinds(specs: Iterable[object], kind: type[Spec]) -> list[Spec]:
    """The different specs of one class, in order."""
    return list(dict.fromkeys(spec for spec in specs if isinstance(spec, kind)))


def _one(found: list[Spec], what: str) -> Spec:
    if len(found) != 1:
        raise RequestError(f"the layout has one kind of {what}, this model has {len(found)}")
    return found[0]


def _activation(activation: Activation) -> dict[str, Json]:
    if not isinstance(activation, SiTU):
        return {"hidden_act": "silu"}
    return {
        "hidden_act": "situ",
        "activation_situ_beta": activation.beta,
        "activation_situ_linear_beta": activation.linear_beta,
    }


def _latent_attention(spec: MLASpec) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.heads,
        "q_lora_rank": spec.q_rank,
        "kv_lora_rank": spec.kv_rank,
        "qk_nope_head_dim": spec.nope_dim,
        "qk_rope_head_dim": spec.rope_dim,
        "v_head_dim": spec.value_dim,
        "mla_use_nope": True,
    }
    return fields | ({"mla_use_output_gate": True} if spec.gate else {})


def _linear_attention(config: ModelConfig, spec: KDASpec) -> dict[str, Json]:
    recurrent: list[Json] = []
    full: list[Json] = []
    for index, layer in enumerate(config.layers):
        (recurrent if layer.mixer == spec else full).append(index + 1)  # the lists are 1-based
    fields: dict[str, Json] = {
        "kda_layers": recurrent,
        "full_attn_layers": full,
        "num_heads": spec.heads,
        "head_dim": spec.key_dim,
        "short_conv_kernel_size": spec.conv,
    }
    if spec.lower_bound is not None:
        fields["gate_lower_bound"] = spec.lower_bound
    if spec.output_gate == "full":
        fields["use_full_rank_gate"] = True
    return fields


def _experts(spec: MoESpec | LatentMoESpec) -> dict[str, Json]:
    stored = padded_shared_width(spec.shared_width, spec.width)
    fields: dict[str, Json] = {
        "num_experts": spec.experts,
        "num_experts_per_token": spec.top_k,
        "num_shared_experts": stored // spec.width,
        "moe_intermediate_size": spec.width,
        "moe_renormalize": spec.renormalize,
        "moe_router_activation_func": "sigmoid",
        "routed_scaling_factor": spec.scaling,
        "use_grouped_topk": True,
        "num_expert_group": spec.groups,
        "topk_group": spec.top_groups,
    }
    if stored != spec.shared_width:
        fields[SHARED_WIDTH] = spec.shared_width
    if isinstance(spec, LatentMoESpec):
        fields |= {"routed_expert_hidden_size": spec.latent, "latent_moe_use_norm": True, "topk_method": "noaux_tc"}
    return fields
