"""Linear attention's mixer: φ = ELU+1 on q and k, the additive memory, an RMSNorm per head."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from statewell.config.mixers import LinearSpec
from statewell.memory.matrix import AdditiveMemory, LinearInputs
from statewell.memory.segments import Segments
from statewell.memory.store import Store
from statewell.models.parts import Linear, RMSNorm


class LinearAttention(nn.Module):
    """x [1, T, D] -> [1, T, D]. Source: arXiv:2006.16236; layer as in flash-linear-attention's LinearAttention."""

    def __init__(self, spec: LinearSpec, width: int, eps: float) -> None:
        super().__init__()
        self.spec = spec
        self.q_proj = Linear(width, spec.heads * spec.key_dim)
        self.k_proj = Linear(width, spec.heads * spec.key_dim)
        self.v_proj = Linear(width, spec.heads * spec.value_dim)
        self.o_norm = RMSNorm(spec.value_dim, eps)
        self.o_proj = Linear(spec.heads * spec.value_dim, width)

    def new_memory(self, store: Store) -> AdditiveMemory:
        """An additive matrix memory over `store`."""
        return AdditiveMemory(store)

    def forward(self, x: Tensor, memory: AdditiveMemory, segments: Segments) -> Tensor:
        heads = (self.spec.heads, -1)
        q = F.elu(self.q_proj(x)).unflatten(-1, heads) + 1
        k = F.elu(self.k_proj(x)).unflatten(-1, heads) + 1
        v = self.v_proj(x).unflatten(-1, heads)
        o = memory.mix(LinearInputs(q, k, v), segments)
        return self.o_proj(self.o_norm(o).flatten(-2))
