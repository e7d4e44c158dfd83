"""Gated DeltaNet's mixer: as DeltaNet's, with a fade per value head and a SiLU gate on the normed output."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from statewell.config.mixers import GatedDeltaSpec
from statewell.kernels import ops
from statewell.memory.matrix import GatedDeltaInputs, GatedDeltaMemory
from statewell.memory.segments import Segments
from statewell.memory.store import Store
from statewell.models.convolution import convolution
from statewell.models.parts import Linear, RMSNorm, empty, promoted


class GatedDelta(nn.Module):
    """x [1, T, D] -> [1, T, D]. Source: arXiv:2412.06464; layer as in flash-linear-attention's GatedDeltaNet."""

    def __init__(self, spec: GatedDeltaSpec, width: int, eps: float) -> None:
        super().__init__()
        self.spec = spec
        keys, values = spec.heads * spec.key_dim, spec.value_heads * spec.value_dim
        self.q_proj = Linear(width, keys)
        self.k_proj = Linear(width, keys)
        self.v_proj = Linear(width, values)
        self.q_conv = convolution(keys, spec.conv, spec.conv_bias)
        self.k_conv = convolution(keys, spec.conv, spec.conv_bias)
        self.v_conv = convolution(values, spec.conv, spec.conv_bias)
        self.a_proj = Linear(width, spec.value_heads)
        self.b_proj = Linear(width, spec.value_heads)
        self._strongest = 2.0 if spec.neg_eigval else 1.0
        self.A_log = empty(spec.value_heads)
        self.dt_bias = empty(spec.value_heads)
        if spec.gate:
            self.g_proj = Linear(width, values)
            self._finish: Callable[[Tensor, Tensor], Tensor] = self._gated
        else:
            self._finish = self._ungated
        self.o_norm = RMSNorm(spec.value_dim, eps)
        self.o_proj = Linear(values, width)

    def new_memory(self, store: Store) -> GatedDeltaMemory:
        """A gated delta-rule matrix memory over `store`."""
        return GatedDeltaMemory(store)

    def _gated(self, o: Tensor, x: Tensor) -> Tensor:
        return ops.gated_rms_norm(o, self.o_norm.weight, self.g_proj(x).view(o.shape), self.o_norm.eps, F.silu)

    def _ungated(self, o: Tensor, x: Tensor) -> Tensor:
        return self.o_norm(o)

    def forward(self, x: Tensor, memory: GatedDeltaMemory, segments: Segments) -> Tensor:
        keys, values = (self.spec.heads, -1), (self.spec.value_heads, -1)
        tails = memory.tails
        q = self.q_conv(self.q_proj(x), "q", tails, segments).unflatten(-1, keys)
        k = self.k_conv(self.k_proj(x), "k", tails, segments).unflatten(-1, keys)
        v = self.v_conv(self.v_proj(x), "v", tails, segments).unflatten(-1, values)
        g = ops.decay_gate(self.a_proj(x), self.A_log, self.dt_bias)
        beta = promoted(self.b_proj(x)).sigmoid() * self._strongest
        o = memory.mix(GatedDeltaInputs(ops.l2norm(q), ops.l2norm(k), v, g, beta), segments)
        return self.o_proj(self._finish(o, x).flatten(-2))
