"""DeltaNet's mixer: short convolutions and SiLU before unit-length q and k, a write strength, an RMSNorm per head."""

from __future__ import annotations

from torch import Tensor, nn

from statewell.config.mixers import DeltaSpec
from statewell.kernels import ops
from statewell.memory.matrix import DeltaInputs, DeltaMemory
from statewell.memory.segments import Segments
from statewell.memory.store import Store
from statewell.models.parts import Linear, RMSNorm, ShortConv, promoted


class Delta(nn.Module):
    """x [1, T, D] -> [1, T, D]. Source: arXiv:2406.06484; layer as in flash-linear-attention's DeltaNet."""

    def __init__(self, spec: DeltaSpec, width: int, eps: float) -> None:
        super().__init__()
        self.spec = spec
        keys, values = spec.heads * spec.key_dim, spec.heads * spec.value_dim
        self.q_proj = Linear(width, keys)
        self.k_proj = Linear(width, keys)
        self.v_proj = Linear(width, values)
        self.q_conv = ShortConv(keys, spec.conv)
        self.k_conv = ShortConv(keys, spec.conv)
        self.v_conv = ShortConv(values, spec.conv)
        self.b_proj = Linear(width, spec.heads)
        self.o_norm = RMSNorm(spec.value_dim, eps)
        self.o_proj = Linear(values, width)

    def new_memory(self, store: Store) -> DeltaMemory:
        """A delta-rule matrix memory over `store`."""
        return DeltaMemory(store)

    def forward(self, x: Tensor, memory: DeltaMemory, segments: Segments) -> Tensor:
        heads = (self.spec.heads, -1)
        tails = memory.tails
        q = self.q_conv(self.q_proj(x), "q", tails, segments).unflatten(-1, heads)
        k = self.k_conv(self.k_proj(x), "k", tails, segments).unflatten(-1, heads)
        v = self.v_conv(self.v_proj(x), "v", tails, segments).unflatten(-1, heads)
        beta = promoted(self.b_proj(x)).sigmoid()
        o = memory.mix(DeltaInputs(ops.l2norm(q), ops.l2norm(k), v, beta), segments)
        return self.o_proj(self.o_norm(o).flatten(-2))
