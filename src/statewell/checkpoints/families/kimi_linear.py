"""Kimi Linear's tensors. Source: `moonshotai/Kimi-Linear-48B-A3B-Instruct`.

transformers saves the dense layers' network under `block_sparse_moe`, where the release has `mlp`: both are read.
"""

from __future__ import annotations

from statewell.checkpoints.kimi import kimi_rules
from statewell.checkpoints.layout import Layout
from statewell.checkpoints.rules import Entry, Vector
from statewell.config.layers import ModelConfig
from statewell.config.mixers import KDASpec


def _a_log(spec: KDASpec) -> Vector:
    return Vector(((1, 1, spec.heads, 1), (spec.heads,)), spec.heads)


def _rules(config: ModelConfig) -> tuple[Entry, ...]:
    return kimi_rules(config, _a_log)


LAYOUT = Layout(rules=_rules)
