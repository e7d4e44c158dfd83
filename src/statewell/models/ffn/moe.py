"""Experts chosen per token: the routed experts and a shared expert beside them; and K3's latent kind, which is the
same between two projections. How they are chosen is `router.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from statewell.config.layers import LatentMoESpec, MoESpec
from statewell.models.ffn.experts import DenseExperts, Experts
from statewell.models.ffn.mlp import GatedMLP
from statewell.models.ffn.router import router
from statewell.models.parts import Linear, RMSNorm


class MoE(nn.Module):
    """x [..., D] -> routed experts' weighted sum + the shared expert, gated or not.

    Sources: Kimi Linear release; Qwen3-Next release, for the gate.
    """

    def __init__(self, spec: MoESpec, width: int, eps: float) -> None:
        super().__init__()
        self.router = router(spec, width)
        self.experts: Experts = DenseExperts(spec, width)
        self.shared = GatedMLP(spec.activation, spec.shared_width, width)
        if spec.shared_gate:
            self.shared_gate = Linear(width, 1)
            self._shared: Callable[[Tensor], Tensor] = self._gated
        else:
            self._shared = self._ungated

    def _ungated(self, x: Tensor) -> Tensor:
        return self.shared(x)

    def _gated(self, x: Tensor) -> Tensor:
        return self.shared_gate(x).sigmoid() * self.shared(x)

    def forward(self, x: Tensor) -> Tensor:
        index, weight = self.router(x)
        return self.experts(x, index, weight) + self._shared(x)


class LatentMoE(nn.Module):
    """x [..., D] -> up(norm(routed experts(down x))) + the shared expert at full width. Source: K3 report,
    LatentMoE."""

    def __init__(self, spec: LatentMoESpec, width: int, eps: float) -> None:
        super().__init__()
        self.router = router(spec, width)
        self.latent_down_proj = Linear(width, spec.latent)
        self.experts: Experts = DenseExperts(spec, spec.latent)
        self.latent_norm = RMSNorm(spec.latent, eps)
        self.latent_up_proj = Linear(spec.latent, width)
        self.shared = GatedMLP(spec.activation, spec.shared_width, width)

    def forward(self, x: Tensor) -> Tensor:
        index, weight = self.router(x)
        routed = self.experts(self.latent_down_proj(x), index, weight)
        return self.latent_up_proj(self.latent_norm(routed)) + self.shared(x)
