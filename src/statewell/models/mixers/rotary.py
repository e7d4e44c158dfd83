"""Attention with rotary positions: grouped heads, a norm on queries and keys, a gate on the output, each as chosen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from statewell.config.mixers import RotaryAttentionSpec
from statewell.memory.segments import Segments
from statewell.memory.store import Store
from statewell.memory.tokens import KVInputs, KVMemory
from statewell.models.parts import Linear, norm
from statewell.models.rotary import rotate


class RotaryAttention(nn.Module):
    """x [1, T, D] -> [1, T, D]. Sources: Qwen3-Next release, `self_attn`; flash-linear-attention's Attention."""

    def __init__(self, spec: RotaryAttentionSpec, width: int, eps: float) -> None:
        super().__init__()
        self.spec = spec
        inner, kept = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        self.q_proj = Linear(width, inner, bias=spec.bias)
        self.k_proj = Linear(width, kept, bias=spec.bias)
        self.v_proj = Linear(width, kept, bias=spec.bias)
        if spec.qk_norm is None:
            self.q_norm = self.k_norm = nn.Identity()
        else:
            self.q_norm = norm(spec.qk_norm, spec.head_dim)
            self.k_norm = norm(spec.qk_norm, spec.head_dim)
        if spec.gate:
            self.g_proj = Linear(width, inner, bias=spec.bias)
            self._finish: Callable[[Tensor, Tensor], Tensor] = self._gated
        else:
            self._finish = self._ungated
        self.o_proj = Linear(inner, width, bias=spec.output_bias)
        self._rotate = partial(rotate, rotary_dim=spec.rotary_dim, theta=spec.theta)

    def new_memory(self, store: Store) -> KVMemory:
        """A key-value cache over `store`; its keys are rotated already."""
        return KVMemory(store)

    def _gated(self, o: Tensor, x: Tensor) -> Tensor:
        return self.o_proj(o * self.g_proj(x).sigmoid())

    def _ungated(self, o: Tensor, x: Tensor) -> Tensor:
        return self.o_proj(o)

    def forward(self, x: Tensor, memory: KVMemory, segments: Segments) -> Tensor:
        heads, positions = (-1, self.spec.head_dim), segments.positions(x.device)
        q = self._rotate(self.q_norm(self.q_proj(x).unflatten(-1, heads)), positions)
        k = self._rotate(self.k_norm(self.k_proj(x).unflatten(-1, heads)), positions)
        v = self.v_proj(x).unflatten(-1, heads)
        o = memory.mix(KVInputs(q, k, v), segments)
        return self._finish(o.flatten(-2), x)
