"""Feed-forward networks: dense, experts, experts in a latent space. This is their registry."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from statewell.config.layers import FFNSpec, LatentMoESpec, MLPSpec, MoESpec
from statewell.models.ffn.mlp import mlp
from statewell.models.ffn.moe import LatentMoE, MoE

_FFNS: dict[type, Callable[..., nn.Module]] = {MLPSpec: mlp, MoESpec: MoE, LatentMoESpec: LatentMoE}


def ffn(spec: FFNSpec, width: int, eps: float) -> nn.Module:
    """The network `spec` describes, over a stream of `width`; eps: the model's norm eps."""
    return _FFNS[type(spec)](spec, width, eps)
