"""DeltaNet's mixer: short convolutions and SiLU before unit-length q and k, a write strength, an RMSNorm per head.

Each can be chosen otherwise when the mixer is built: no convolution, another activation, a gate on the output.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from statewell.config.mixers import DeltaSpec
from statewell.kernels import ops
from statewell.memory.matrix import DeltaInputs, DeltaMemory
from statewell.memory.segments import Segments
from statewell.memory.store import Store
from statewell.models.convolution import convolution
from statewell.models.feature_maps import elu_plus_one
from statewell.models.parts import Linear, RMSNorm, promoted


def _same(x: Tensor) -> Tensor:
    return x


def _over_its_sum(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True)


_ACTIVATIONS = {"silu": F.silu, "relu": F.relu, "elu": elu_plus_one, "identity": _same}
_NORMS = {"l2": ops.l2norm, "sum": _over_its_sum}


class Delta(nn.Module):
    """x [1, T, D] -> [1, T, D]. Source: arXiv:2406.06484; layer as in flash-linear-attention's DeltaNet."""

    def __init__(self, spec: DeltaSpec, width: int, eps: float) -> None:
        super().__init__()
        self.spec = spec
        keys, values = spec.heads * spec.key_dim, spec.heads * spec.value_dim
        activation = _ACTIVATIONS[spec.qk_activation]
        self.q_proj = Linear(width, keys)
        self.k_proj = Linear(width, keys)
        self.v_proj = Linear(width, values)
        self.q_conv = convolution(keys, spec.conv, spec.conv_bias, activation)
        self.k_conv = convolution(keys, spec.conv, spec.conv_bias, activation)
        self.v_conv = convolution(values, spec.conv, spec.conv_bias)
        self._normed: Callable[[Tensor], Tensor] = _NORMS[spec.qk_norm]
        self._strongest = 2.0 if spec.neg_eigval else 1.0
        if spec.beta:
            self.b_proj = Linear(width, spec.heads)
            self._strength: Callable[[Tensor], Tensor] = self._learned_strength
        else:
            self._strength = self._full_strength
        if spec.gate:
            self.g_proj = Linear(width, values)
            self._finish: Callable[[Tensor, Tensor], Tensor] = self._gated
        else:
            self._finish = self._ungated
        self.o_norm = RMSNorm(spec.value_dim, eps)
        self.o_proj = Linear(values, width)

    def new_memory(self, store: Store) -> DeltaMemory:
        """A delta-rule matrix memory over `store`."""
        return DeltaMemory(store)

    def _learned_strength(self, x: Tensor) -> Tensor:
        return promoted(self.b_proj(x)).sigmoid() * self._strongest

    def _full_strength(self, x: Tensor) -> Tensor:
        return promoted(x).new_full((*x.shape[:-1], self.spec.heads), self._strongest)

    def _gated(self, o: Tensor, x: Tensor) -> Tensor:
        return ops.gated_rms_norm(o, self.o_norm.weight, self.g_proj(x).view(o.shape), self.o_norm.eps, F.silu)

    def _ungated(self, o: Tensor, x: Tensor) -> Tensor:
        return self.o_norm(o)

    def forward(self, x: Tensor, memory: DeltaMemory, segments: Segments) -> Tensor:
        heads = (self.spec.heads, -1)
        tails = memory.tails
        q = self.q_conv(self.q_proj(x), "q", tails, segments).unflatten(-1, heads)
        k = self.k_conv(self.k_proj(x), "k", tails, segments).unflatten(-1, heads)
        v = self.v_conv(self.v_proj(x), "v", tails, segments).unflatten(-1, heads)
        o = memory.mix(DeltaInputs(self._normed(q), self._normed(k), v, self._strength(x)), segments)
        return self.o_proj(self._finish(o, x).flatten(-2))
