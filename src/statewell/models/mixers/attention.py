"""GPT-2's mixer: one projection to q, k and v, causal softmax attention over the cache, one projection back."""

from __future__ import annotations

from torch import Tensor, nn

from statewell.config.mixers import AttentionSpec
from statewell.memory.segments import Segments
from statewell.memory.store import Store
from statewell.memory.tokens import KVInputs, KVMemory
from statewell.models.parts import Linear


class Attention(nn.Module):
    """x [1, T, D] -> [1, T, D]. Source: GPT-2 release, `attn`."""

    def __init__(self, spec: AttentionSpec, width: int, eps: float) -> None:
        super().__init__()
        self.spec = spec
        inner = spec.heads * spec.head_dim
        self.qkv_proj = Linear(width, 3 * inner, bias=spec.bias)
        self.o_proj = Linear(inner, width, bias=spec.bias)

    def new_memory(self, store: Store) -> KVMemory:
        """A key-value cache over `store`."""
        return KVMemory(store)

    def forward(self, x: Tensor, memory: KVMemory, segments: Segments) -> Tensor:
        q, k, v = self.qkv_proj(x).unflatten(-1, (3, self.spec.heads, self.spec.head_dim)).unbind(-3)
        o = memory.mix(KVInputs(q, k, v), segments)
        return self.o_proj(o.flatten(-2))
