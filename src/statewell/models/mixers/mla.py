"""Latent attention's mixer: a latent row per token, queries straight or through a rank, an output gate in K3.

Kimi Linear and K3 differ here in two choices made when the mixer is built: `q_rank` and `gate`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from statewell.config.mixers import MLASpec
from statewell.memory.segments import Segments
from statewell.memory.store import Store
from statewell.memory.tokens import LatentInputs, LatentMemory
from statewell.models.parts import Linear, RMSNorm

LATENT_EPS = 1e-6  # of q_a_norm and kv_a_norm: a constant of the released code, not the model's norm eps


class MLA(nn.Module):
    """x [1, T, D] -> [1, T, D], without positions. Source: K3 release, Gated MLA; Kimi Linear, MLA NoPE."""

    def __init__(self, spec: MLASpec, width: int, eps: float) -> None:
        super().__init__()
        self.spec = spec
        queries = spec.heads * (spec.nope_dim + spec.rope_dim)
        if spec.q_rank is None:
            self.q_proj = Linear(width, queries)
            self._queries: Callable[[Tensor], Tensor] = self._direct_queries
        else:
            self.q_a_proj = Linear(width, spec.q_rank)
            self.q_a_norm = RMSNorm(spec.q_rank, LATENT_EPS)
            self.q_b_proj = Linear(spec.q_rank, queries)
            self._queries = self._ranked_queries
        self.kv_a_proj = Linear(width, spec.kv_rank + spec.rope_dim)
        self.kv_a_norm = RMSNorm(spec.kv_rank, LATENT_EPS)
        self.kv_b_proj = Linear(spec.kv_rank, spec.heads * (spec.nope_dim + spec.value_dim))
        if spec.gate:
            self.g_proj = Linear(width, spec.heads * spec.value_dim)
            self._finish: Callable[[Tensor, Tensor], Tensor] = self._gated
        else:
            self._finish = self._ungated
        self.o_proj = Linear(spec.heads * spec.value_dim, width)

    def new_memory(self, store: Store) -> LatentMemory:
        """A latent cache over `store`."""
        return LatentMemory(store)

    def _direct_queries(self, x: Tensor) -> Tensor:
        return self.q_proj(x)

    def _ranked_queries(self, x: Tensor) -> Tensor:
        return self.q_b_proj(self.q_a_norm(self.q_a_proj(x)))

    def _gated(self, o: Tensor, x: Tensor) -> Tensor:
        return self.o_proj(o * self.g_proj(x).sigmoid())

    def _ungated(self, o: Tensor, x: Tensor) -> Tensor:
        return self.o_proj(o)

    def forward(self, x: Tensor, memory: LatentMemory, segments: Segments) -> Tensor:
        q = self._queries(x).unflatten(-1, (self.spec.heads, -1))
        latent, rope = self.kv_a_proj(x).split((self.spec.kv_rank, self.spec.rope_dim), dim=-1)
        up = self.kv_b_proj.weight.to(x.dtype).unflatten(0, (self.spec.heads, -1))
        o = memory.mix(LatentInputs(q, self.kv_a_norm(latent), rope, up), segments)
        return self._finish(o.flatten(-2), x)
