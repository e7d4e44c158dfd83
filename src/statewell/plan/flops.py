"""Floating-point operations of one token's forward pass: 2 per weight used, plus what reading and writing memory
costs."""

from __future__ import annotations

from functools import singledispatch

from statewell.config.layers import ModelConfig
from statewell.config.mixers import (
    AttentionSpec,
    DeltaSpec,
    GatedDeltaSpec,
    KDASpec,
    LinearSpec,
    MixerSpec,
    MLASpec,
    RotaryAttentionSpec,
)
from statewell.errors import ConfigError
from statewell.plan.weights import active


def flops_per_token(config: ModelConfig, context: int) -> int:
    """Forward FLOPs of the token after `context` earlier ones. Training costs about three times as much.

    A multiply-add counts as two. Weights count once per token (active parameters); norms, gates and activations do not
    count beyond their weights.
    """
    return 2 * active(config) + sum(_mixing(layer.mixer, context) for layer in config.layers)


@singledispatch
def _mixing(spec: MixerSpec, context: int) -> int:
    raise ConfigError(f"no FLOPs are known for a {type(spec).__name__}; register it in plan/flops.py.")


@_mixing.register
def _(spec: AttentionSpec, context: int) -> int:
    # scores and the weighted sum, over the earlier tokens and this one
    return 4 * spec.heads * spec.head_dim * (context + 1)


@_mixing.register
def _(spec: RotaryAttentionSpec, context: int) -> int:
    return 4 * spec.heads * spec.head_dim * (context + 1)


@_mixing.register
def _(spec: LinearSpec, context: int) -> int:
    # write k v^T, read q S
    return 4 * spec.heads * spec.features * spec.value_dim


@_mixing.register
def _(spec: DeltaSpec, context: int) -> int:
    # read with k, write, read with q
    return 6 * spec.heads * spec.key_dim * spec.value_dim


@_mixing.register
def _(spec: GatedDeltaSpec, context: int) -> int:
    # the delta rule's three and one multiply for the fade
    return 7 * spec.value_heads * spec.key_dim * spec.value_dim


@_mixing.register
def _(spec: KDASpec, context: int) -> int:
    return 7 * spec.states * spec.key_dim * spec.value_dim


@_mixing.register
def _(spec: MLASpec, context: int) -> int:
    # expanded heads, as in training; the absorbed form trades bytes for more of these
    return 2 * spec.heads * (spec.nope_dim + spec.rope_dim + spec.value_dim) * (context + 1)
