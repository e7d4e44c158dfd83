"""Dense networks: GPT-2's up-GELU-down, and the gated kind every later architecture uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from statewell.config.layers import GELU, Activation, MLPSpec, SiTU
from statewell.errors import ConfigError
from statewell.kernels import ops
from statewell.models.parts import Linear


def glu(activation: Activation) -> Callable[[Tensor, Tensor], Tensor]:
    """The two-input activation of a gated network."""
    if isinstance(activation, SiTU):
        return partial(ops.situ, beta=activation.beta, linear_beta=activation.linear_beta)
    if isinstance(activation, GELU):
        raise ConfigError("GELU takes one input; a gated network needs SwiGLU or SiTU.")
    return ops.swiglu


class MLP(nn.Module):
    """down(gelu(up x)), tanh form. Source: GPT-2 release, `mlp`."""

    def __init__(self, spec: MLPSpec, width: int) -> None:
        super().__init__()
        self.up_proj = Linear(width, spec.width, bias=spec.bias)
        self.down_proj = Linear(spec.width, width, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))


class GatedMLP(nn.Module):
    """down(activation(gate x, up x)): SwiGLU or SiTU."""

    def __init__(self, activation: Activation, inner: int, width: int) -> None:
        super().__init__()
        self.gate_proj = Linear(width, inner)
        self.up_proj = Linear(width, inner)
        self.down_proj = Linear(inner, width)
        self._activate = glu(activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self._activate(self.gate_proj(x), self.up_proj(x)))


def mlp(spec: MLPSpec, width: int, eps: float) -> MLP | GatedMLP:
    """The dense network `spec` describes; eps is not needed, no norm is inside."""
    return GatedMLP(spec.activation, spec.width, width) if spec.activation.gated else MLP(spec, width)
