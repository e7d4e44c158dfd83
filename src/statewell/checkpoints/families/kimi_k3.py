"""Kimi K3's tensors: Kimi Linear's, the attention residuals, and the vision side, which is left out.

Source: `moonshotai/Kimi-K3`, whose text tensors carry the prefix `language_model.`.
"""

from __future__ import annotations

from statewell.checkpoints.kimi import kimi_rules
from statewell.checkpoints.layout import Layout
from statewell.checkpoints.rules import Entry, Ignore, Rename, Unsqueezed, Vector
from statewell.config.layers import ModelConfig
from statewell.config.mixers import KDASpec
from statewell.formats.kimi_k3 import FP32


def _a_log(spec: KDASpec) -> Vector:
    """The release stores as many entries as a head is wide, zeros after the last head's."""
    stored = max(spec.heads, spec.key_dim)
    return Vector(tuple(dict.fromkeys(((stored,), (spec.heads,), (1, 1, spec.heads, 1)))), spec.heads)


def _residuals(source: str, target: str) -> tuple[Entry, ...]:
    return (
        Rename(f"{source}_norm.weight", f"{target}.norm_weight"),
        Rename(f"{source}_proj.weight", f"{target}.query", Unsqueezed(0)),
    )


def _rules(config: ModelConfig) -> tuple[Entry, ...]:
    rules = [*kimi_rules(config, _a_log), *_residuals("model.output_attn_res", "output_site")]
    for index in range(len(config.layers)):
        theirs, ours = f"model.layers.{index}", f"blocks.{index}"
        rules += _residuals(f"{theirs}.self_attention_res", f"{ours}.mixer_site")
        rules += _residuals(f"{theirs}.mlp_res", f"{ours}.ffn_site")
    rules.append(Ignore(r"(vision_tower|mm_projector)\..*", "the vision side; statewell runs the text model"))
    return tuple(rules)


LAYOUT = Layout(rules=_rules, prefix="language_model.", writes_prefix=True, fp32=FP32)
