"""Reading what the config.json of Kimi Linear and of K3's text model share: one modeling code runs both.

Layer lists in `linear_attn_config` are 1-based. Sources: the released configs and `modeling_kimi_linear.py` of Kimi K3;
transformers' KimiLinearConfig, whose other names for the same fields are read too.
"""

from __future__ import annotations

from statewell.config.layers import (
    Activation,
    FFNSpec,
    LatentMoESpec,
    LayerSpec,
    MLPSpec,
    MoESpec,
    SiTU,
    SwiGLU,
)
from statewell.config.mixers import KDASpec, MixerSpec, MLASpec
from statewell.formats.fields import MOST_LAYERS, Fields

# An export's own field: the shared expert's width where it is no multiple of an expert's. The file then holds zero rows
# up to the next multiple, which is what the released code builds; they change nothing.
SHARED_WIDTH = "statewell_shared_width"

_HARMLESS = (
    *("head_dim", "qk_head_dim"),  # follow from the parts
    *("rope_theta", "rope_scaling", "rope_parameters"),  # nothing is rotated: mla_use_nope
    *("layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim"),  # as linear_attn_config says
    *("attention_dropout", "output_router_logits", "pretraining_tp", "router_aux_loss_coef"),
)


def padded_shared_width(shared: int, expert: int) -> int:
    """The width the released layout stores a shared expert at: a whole number of routed ones."""
    return -(-shared // expert) * expert


def read_layers(fields: Fields) -> tuple[LayerSpec, ...]:
    """Every layer the fields describe, mixer and FFN."""
    fields.harmless(*_HARMLESS)
    _refuse_what_is_not_offered(fields)
    depth = fields.whole("num_hidden_layers", highest=MOST_LAYERS)
    activation = _activation(fields)
    mixers = _mixers(fields, depth)
    ffns = _ffns(fields, depth, activation)
    return tuple(LayerSpec(mixer=mixer, ffn=ffn) for mixer, ffn in zip(mixers, ffns, strict=True))


def _refuse_what_is_not_offered(fields: Fields) -> None:
    fields.only("mla_use_nope", True, why="statewell's latent attention rotates nothing")
    fields.only("moe_router_activation_func", "sigmoid", why="statewell's Kimi routers have sigmoid scores")
    fields.only("topk_method", "noaux_tc", why="statewell chooses experts by score and correction bias")
    fields.only("num_nextn_predict_layers", 0, why="statewell predicts one token at a time")
    fields.only("attention_bias", False, why="statewell's Kimi projections have no bias")
    fields.only("latent_moe_use_norm", True, why="statewell norms the latent before it is projected up")


def _activation(fields: Fields) -> Activation:
    name = fields.text("hidden_act", default="silu")
    if name == "silu":
        return SwiGLU()
    if name != "situ":
        fields.refuse("hidden_act", f"is {name!r}; statewell's Kimi models have 'silu' or 'situ'")
    beta = fields.optional_number("activation_situ_beta")
    # without a beta the released code takes 1; without a second one it leaves `up` as it is
    return SiTU(beta=1.0 if beta is None else beta, linear_beta=fields.optional_number("activation_situ_linear_beta"))


def _mixers(fields: Fields, depth: int) -> tuple[MixerSpec, ...]:
    linear = fields.section("linear_attn_config")
    dim = linear.whole("head_dim")
    kda = KDASpec(
        heads=linear.whole("num_heads"),
        key_dim=dim,
        value_dim=dim,
        conv=linear.whole("short_conv_kernel_size", default=4),
        output_gate="full" if linear.flag("use_full_rank_gate", default=False) else "low_rank",
        lower_bound=linear.optional_number("gate_lower_bound"),
    )
    heads = fields.whole("num_attention_heads")
    if (groups := fields.whole("num_key_value_heads", default=heads)) != heads:
        fields.refuse("num_key_value_heads", f"is {groups}; latent attention has as many as query heads, {heads}")
    mla = MLASpec(
        heads=heads,
        q_rank=fields.optional_whole("q_lora_rank"),
        kv_rank=fields.whole("kv_lora_rank"),
        nope_dim=fields.whole("qk_nope_head_dim"),
        rope_dim=fields.whole("qk_rope_head_dim"),
        value_dim=fields.whole("v_head_dim"),
        gate=fields.flag("mla_use_output_gate", default=False),
    )
    recurrent = linear.optional_list(int, "kda_layers") or []
    full = linear.optional_list(int, "full_attn_layers") or []
    if sorted(recurrent + full) != list(range(1, depth + 1)):
        linear.refuse("kda_layers", f"and full_attn_layers do not name each of the layers 1 to {depth} once")
    return tuple(kda if index + 1 in set(recurrent) else mla for index in range(depth))


def _ffns(fields: Fields, depth: int, activation: Activation) -> tuple[FFNSpec, ...]:
    dense = MLPSpec(width=fields.whole("intermediate_size"), activation=activation)
    kinds = fields.optional_list(str, "mlp_layer_types")
    first, every = fields.whole("first_k_dense_replace", default=1, lowest=0), fields.whole("moe_layer_freq", default=1)
    sparse = [index >= first and index % every == 0 for index in range(depth)]
    if kinds is not None and [kind == "sparse" for kind in kinds] != sparse:
        fields.refuse("mlp_layer_types", "names other layers than first_k_dense_replace and moe_layer_freq do")
    if fields.optional_whole("num_experts", "num_local_experts") is None:
        return (dense,) * depth
    moe = _experts(fields, activation)
    return tuple(moe if is_sparse else dense for is_sparse in sparse)


def _experts(fields: Fields, activation: Activation) -> MoESpec | LatentMoESpec:
    width = fields.whole("moe_intermediate_size")
    shared = width * fields.whole("num_shared_experts", "n_shared_experts", default=1)
    exact = fields.whole(SHARED_WIDTH, default=shared)
    if padded_shared_width(exact, width) != shared:
        fields.refuse(SHARED_WIDTH, f"is {exact}; stored at a multiple of {width} it would be {shared} wide")
    groups, kept = _groups(fields)
    experts = MoESpec(
        experts=fields.whole("num_experts", "num_local_experts"),
        top_k=fields.whole("num_experts_per_token", "num_experts_per_tok"),
        width=width,
        shared_width=exact,
        activation=activation,
        scaling=fields.number("routed_scaling_factor", default=1.0),
        renormalize=fields.flag("moe_renormalize", "norm_topk_prob", default=True),
        groups=groups,
        top_groups=kept,
    )
    latent = fields.optional_whole("routed_expert_hidden_size")
    return experts if latent is None else _latent(experts, latent)


def _latent(spec: MoESpec, latent: int) -> LatentMoESpec:
    return LatentMoESpec(
        experts=spec.experts,
        top_k=spec.top_k,
        width=spec.width,
        shared_width=spec.shared_width,
        latent=latent,
        activation=spec.activation,
        scaling=spec.scaling,
        renormalize=spec.renormalize,
        groups=spec.groups,
        top_groups=spec.top_groups,
    )


def _groups(fields: Fields) -> tuple[int, int]:
    """Groups of experts and how many of them a token keeps; keeping all of them is no grouping."""
    groups = fields.whole("num_expert_group", "n_group", default=1)
    kept = fields.whole("topk_group", default=1)
    return (groups, kept) if fields.flag("use_grouped_topk", default=True) and kept < groups else (1, 1)
