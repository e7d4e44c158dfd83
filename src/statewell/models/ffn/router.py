"""How experts are chosen: x [..., D] -> expert index and weight, each [..., top_k]. Scores are at least fp32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from statewell.config.layers import LatentMoESpec, MoESpec
from statewell.kernels import ops
from statewell.models.parts import empty, promoted


class SigmoidRouter(nn.Module):
    """Sigmoid scores; the correction bias moves only which experts are chosen, never their weights. Source: K3 release.

    With groups, an expert can be chosen only inside the token's best groups.
    """

    def __init__(self, spec: MoESpec | LatentMoESpec, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = empty(spec.experts, width)
        self.register_buffer("correction_bias", torch.empty(spec.experts))
        self.correction_bias: Tensor
        self._choose: Callable[[Tensor], tuple[Tensor, Tensor]] = self._of_all if spec.groups == 1 else self._of_groups

    def _of_all(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spec, weight = self.spec, promoted(self.weight)
        return ops.route(promoted(x), weight, self.correction_bias, spec.top_k, spec.scaling, spec.renormalize)

    def _of_groups(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spec, weight = self.spec, promoted(self.weight)
        groups = (spec.groups, spec.top_groups)
        return ops.route_grouped(
            promoted(x), weight, self.correction_bias, spec.top_k, groups, spec.scaling, spec.renormalize
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._choose(x)


class SoftmaxRouter(nn.Module):
    """Softmax scores, no bias. Source: Qwen3-Next release."""

    def __init__(self, spec: MoESpec, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = empty(spec.experts, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spec = self.spec
        return ops.route_softmax(promoted(x), promoted(self.weight), spec.top_k, spec.scaling, spec.renormalize)


def router(spec: MoESpec | LatentMoESpec, width: int) -> SigmoidRouter | SoftmaxRouter:
    """The router `spec` describes, over a stream of `width`."""
    if isinstance(spec, MoESpec) and spec.scores == "softmax":
        return SoftmaxRouter(spec, width)
    return SigmoidRouter(spec, width)
