"""The tensors that Kimi Linear and K3 name alike: both mixers, both networks, the experts."""

from __future__ import annotations

from collections.abc import Callable

from statewell.checkpoints.rules import (
    AsIs,
    Dequantised,
    Either,
    Entry,
    Form,
    Padded,
    Rename,
    Repeat,
    Stack,
    Unsqueezed,
)
from statewell.config.layers import LatentMoESpec, LayerSpec, MLPSpec, ModelConfig, MoESpec
from statewell.config.mixers import KDASpec, MLASpec
from statewell.formats.kimi import padded_shared_width

_GLU = ("gate_proj", "up_proj", "down_proj")


def kimi_rules(config: ModelConfig, a_log: Callable[[KDASpec], Form]) -> tuple[Entry, ...]:
    """Rules of the whole model but for attention residuals; `a_log` is the form of A_log, in which the two differ."""
    rules: list[Entry] = [
        Rename("model.embed_tokens.weight", "embedding.weight"),
        Rename("model.norm.weight", "norm.weight"),
        # transformers' Kimi Linear has a head of its own whatever the config says
        Repeat("lm_head.weight", "model.embed_tokens.weight", written=True)
        if config.tied
        else Rename("lm_head.weight", "head.weight"),
    ]
    for index, layer in enumerate(config.layers):
        theirs, ours = f"model.layers.{index}", f"blocks.{index}"
        rules.append(Rename(f"{theirs}.input_layernorm.weight", f"{ours}.mixer_norm.weight"))
        rules.append(Rename(f"{theirs}.post_attention_layernorm.weight", f"{ours}.ffn_norm.weight"))
        rules += _mixer(layer, f"{theirs}.self_attn", f"{ours}.mixer", a_log)
        rules += _ffn(layer, theirs, f"{ours}.ffn")
    return tuple(rules)


def _mixer(layer: LayerSpec, theirs: str, ours: str, a_log: Callable[[KDASpec], Form]) -> list[Entry]:
    spec = layer.mixer
    if isinstance(spec, MLASpec):
        return _mla(spec, theirs, ours)
    if isinstance(spec, KDASpec):
        return _kda(spec, theirs, ours, a_log(spec))
    raise TypeError(f"{type(spec).__name__} is no mixer of Kimi's")


def _kda(spec: KDASpec, theirs: str, ours: str, a_log: Form) -> list[Entry]:
    gate = ("g_proj",) if spec.output_gate == "full" else ("g_a_proj", "g_b_proj")
    same = ("q_proj", "k_proj", "v_proj", "f_a_proj", "f_b_proj", "b_proj", *gate, "o_norm", "o_proj")
    return [
        *(Rename(f"{theirs}.{name}.weight", f"{ours}.{name}.weight") for name in same),
        *(Rename(f"{theirs}.{x}_conv1d.weight", f"{ours}.{x}_conv.weight", Unsqueezed(1)) for x in "qkv"),
        Rename(f"{theirs}.A_log", f"{ours}.A_log", a_log),
        Rename(f"{theirs}.dt_bias", f"{ours}.dt_bias"),
    ]


def _mla(spec: MLASpec, theirs: str, ours: str) -> list[Entry]:
    names = {"kv_a_proj_with_mqa": "kv_a_proj", "kv_a_layernorm": "kv_a_norm", "kv_b_proj": "kv_b_proj"}
    if spec.q_rank is None:
        names["q_proj"] = "q_proj"
    else:
        names |= {"q_a_proj": "q_a_proj", "q_a_layernorm": "q_a_norm", "q_b_proj": "q_b_proj"}
    names |= {"g_proj": "g_proj", "o_proj": "o_proj"} if spec.gate else {"o_proj": "o_proj"}
    return [Rename(f"{theirs}.{source}.weight", f"{ours}.{target}.weight") for source, target in names.items()]


def _ffn(layer: LayerSpec, theirs: str, ours: str) -> list[Entry]:
    spec = layer.ffn
    if isinstance(spec, MLPSpec):
        places = (f"{theirs}.mlp", f"{theirs}.block_sparse_moe")
        return [Either(tuple(tuple(Rename(f"{p}.{n}.weight", f"{ours}.{n}.weight") for n in _GLU) for p in places))]
    moe = f"{theirs}.block_sparse_moe"
    rules: list[Entry] = [
        Rename(f"{moe}.gate.weight", f"{ours}.router.weight"),
        Rename(f"{moe}.gate.e_score_correction_bias", f"{ours}.router.correction_bias"),
        *_shared(spec, f"{moe}.shared_experts", f"{ours}.shared"),
        *(_experts(spec, w, f"{moe}.experts", f"{ours}.experts") for w in ("w1", "w3", "w2")),
    ]
    if isinstance(spec, LatentMoESpec):
        for source, target in (
            ("down_proj", "latent_down_proj"),
            ("up_proj", "latent_up_proj"),
            ("norm", "latent_norm"),
        ):
            rules.append(Rename(f"{moe}.routed_expert_{source}.weight", f"{ours}.{target}.weight"))
    return rules


def _shared(spec: MoESpec | LatentMoESpec, theirs: str, ours: str) -> list[Entry]:
    stored = padded_shared_width(spec.shared_width, spec.width)
    exact = stored == spec.shared_width
    return [
        Rename(
            f"{theirs}.{name}.weight",
            f"{ours}.{name}.weight",
            AsIs() if exact else Padded(1 if name == "down_proj" else 0, spec.shared_width, stored),
        )
        for name in _GLU
    ]


def _experts(spec: MoESpec | LatentMoESpec, weight: str, theirs: str, ours: str) -> Entry:
    """Plain or MXFP4 in the file, decided by the names that are there; packed in the model where it keeps bytes."""
    name = f"{theirs}.{{}}.{weight}"
    packed = (
        Stack(f"{name}.weight_packed", spec.experts, f"{ours}.{weight}_packed", packed=True),
        Stack(f"{name}.weight_scale", spec.experts, f"{ours}.{weight}_scale", packed=True),
    )
    plain = Stack(f"{name}.weight", spec.experts, f"{ours}.{weight}")
    return Either(((plain,), packed, (Dequantised(name, spec.experts, f"{ours}.{weight}"),)))
