"""Experts chosen per token: the router, the routed experts, a shared expert beside them; and K3's latent kind, which is
the
same between two projections.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from statewell.config.layers import LatentMoESpec, MoESpec
from statewell.kernels import ops
from statewell.models.ffn.experts import DenseExperts, Experts
from statewell.models.ffn.mlp import GatedMLP
from statewell.models.parts import Linear, RMSNorm, empty, promoted


class Router(nn.Module):
    """x [..., D] -> expert index and weight, each [..., top_k].

    Scores are sigmoids in at least fp32; the correction bias moves only which experts are chosen, never their weights.
    """

    def __init__(self, spec: MoESpec | LatentMoESpec, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = empty(spec.experts, width)
        self.register_buffer("correction_bias", torch.empty(spec.experts))
        self.correction_bias: Tensor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spec = self.spec
        return ops.route(
            promoted(x),
            promoted(self.weight),
            self.correction_bias,
            spec.top_k,
            spec.scaling,
            spec.renormalize,
        )


class MoE(nn.Module):
    """x [..., D] -> routed experts' weighted sum + the shared expert. Source: Kimi Linear release."""

    def __init__(self, spec: MoESpec, width: int, eps: float) -> None:
        super().__init__()
        self.router = Router(spec, width)
        self.experts: Experts = DenseExperts(spec, width)
        self.shared = GatedMLP(spec.activation, spec.shared_width, width)

    def forward(self, x: Tensor) -> Tensor:
        index, weight = self.router(x)
        return self.experts(x, index, weight) + self.shared(x)


class LatentMoE(nn.Module):
    """x [..., D] -> up(norm(routed experts(down x))) + the shared expert at full width. Source: K3 report,
    LatentMoE."""

    def __init__(self, spec: LatentMoESpec, width: int, eps: float) -> None:
        super().__init__()
        self.router = Router(spec, width)
        self.latent_down_proj = Linear(width, spec.latent)
        self.experts: Experts = DenseExperts(spec, spec.latent)
        self.latent_norm = RMSNorm(spec.latent, eps)
        self.latent_up_proj = Linear(spec.latent, width)
        self.shared = GatedMLP(spec.activation, spec.shared_width, width)

    def forward(self, x: Tensor) -> Tensor:
        index, weight = self.router(x)
        routed = self.experts(self.latent_down_proj(x), index, weight)
        return self.latent_up_proj(self.latent_norm(routed)) + self.shared(x)
