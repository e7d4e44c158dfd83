"""Qwen3-Next's tensors: fused projections and one fused convolution, taken apart. Source:
`Qwen/Qwen3-Next-80B-A3B-Instruct`.
"""

from __future__ import annotations

from statewell.checkpoints.layout import Layout
from statewell.checkpoints.rules import Entry, Ignore, Rename, Repeat, Split, Stack, Unsqueezed
from statewell.config.layers import FFNSpec, MLPSpec, ModelConfig, MoESpec
from statewell.config.mixers import GatedDeltaSpec, MixerSpec, RotaryAttentionSpec
from statewell.errors import CheckpointError

_GLU = ("gate_proj", "up_proj", "down_proj")


def _rules(config: ModelConfig) -> tuple[Entry, ...]:
    rules: list[Entry] = [
        Rename("model.embed_tokens.weight", "embedding.weight"),
        Rename("model.norm.weight", "norm.weight"),
        Repeat("lm_head.weight", "model.embed_tokens.weight")
        if config.tied
        else Rename("lm_head.weight", "head.weight"),
        Ignore(r"mtp\..*", "drafts of later tokens; statewell predicts one at a time"),
    ]
    for index, layer in enumerate(config.layers):
        theirs, ours = f"model.layers.{index}", f"blocks.{index}"
        rules.append(Rename(f"{theirs}.input_layernorm.weight", f"{ours}.mixer_norm.weight"))
        rules.append(Rename(f"{theirs}.post_attention_layernorm.weight", f"{ours}.ffn_norm.weight"))
        rules += _mixer(layer.mixer, theirs, f"{ours}.mixer")
        rules += _ffn(layer.ffn, f"{theirs}.mlp", f"{ours}.ffn")
    return tuple(rules)


def _mixer(spec: MixerSpec, theirs: str, ours: str) -> list[Entry]:
    if isinstance(spec, RotaryAttentionSpec):
        return _attention(spec, f"{theirs}.self_attn", ours)
    if isinstance(spec, GatedDeltaSpec):
        return _delta(spec, f"{theirs}.linear_attn", ours)
    raise CheckpointError(f"Qwen3-Next's layout has no {spec.label}.")


def _attention(spec: RotaryAttentionSpec, theirs: str, ours: str) -> list[Entry]:
    rules: list[Entry] = [Rename(f"{theirs}.{name}.weight", f"{ours}.{name}.weight") for name in ("q_norm", "k_norm")]
    for kind in ("weight", "bias") if spec.bias else ("weight",):
        queries = (f"{ours}.q_proj.{kind}", f"{ours}.g_proj.{kind}")
        # by head: its query, then its gate
        rules.append(Split(f"{theirs}.q_proj.{kind}", queries, (spec.head_dim, spec.head_dim), spec.heads))
        rules += [Rename(f"{theirs}.{name}.{kind}", f"{ours}.{name}.{kind}") for name in ("k_proj", "v_proj", "o_proj")]
    return rules


def _delta(spec: GatedDeltaSpec, theirs: str, ours: str) -> list[Entry]:
    shared = spec.value_heads // spec.heads  # value heads of one key head
    keys, values = spec.heads * spec.key_dim, spec.value_heads * spec.value_dim
    qkvz = tuple(f"{ours}.{name}_proj.weight" for name in "qkvg")
    by_head = (spec.key_dim, spec.key_dim, shared * spec.value_dim, shared * spec.value_dim)
    strengths = (f"{ours}.b_proj.weight", f"{ours}.a_proj.weight")
    convolutions = tuple(f"{ours}.{name}_conv.weight" for name in "qkv")
    return [
        Split(f"{theirs}.in_proj_qkvz.weight", qkvz, by_head, spec.heads),
        Split(f"{theirs}.in_proj_ba.weight", strengths, (shared, shared), spec.heads),
        Split(f"{theirs}.conv1d.weight", convolutions, (keys, keys, values), form=Unsqueezed(1)),
        *(Rename(f"{theirs}.{name}", f"{ours}.{name}") for name in ("A_log", "dt_bias")),
        Rename(f"{theirs}.norm.weight", f"{ours}.o_norm.weight"),
        Rename(f"{theirs}.out_proj.weight", f"{ours}.o_proj.weight"),
    ]


def _ffn(spec: FFNSpec, theirs: str, ours: str) -> list[Entry]:
    if isinstance(spec, MLPSpec):
        return [Rename(f"{theirs}.{name}.weight", f"{ours}.{name}.weight") for name in _GLU]
    if not isinstance(spec, MoESpec):
        raise CheckpointError(f"Qwen3-Next's layout has no {spec.label}.")
    experts = zip(_GLU, ("w1", "w3", "w2"), strict=True)
    return [
        Rename(f"{theirs}.gate.weight", f"{ours}.router.weight"),
        *(Stack(f"{theirs}.experts.{{}}.{n}.weight", spec.experts, f"{ours}.experts.{w}") for n, w in experts),
        *(Rename(f"{theirs}.shared_expert.{n}.weight", f"{ours}.shared.{n}.weight") for n in _GLU),
        Rename(f"{theirs}.shared_expert_gate.weight", f"{ours}.shared_gate.weight"),
    ]


LAYOUT = Layout(rules=_rules)
