"""Linear attention's mixer: a feature map on q and k, the additive memory, an RMSNorm per head."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from statewell.config.mixers import LinearSpec
from statewell.memory.matrix import AdditiveMemory, LinearInputs, UnnormalisedMemory
from statewell.memory.segments import Segments
from statewell.memory.store import Store
from statewell.models.feature_maps import feature_map
from statewell.models.parts import Linear, RMSNorm, UnweightedRMSNorm

FEATURE_SUM_EPS = 1e-4  # of norm_q and norm_k: a constant of flash-linear-attention's layer


def _as_it_is(features: Tensor) -> Tensor:
    return features


def _over_its_sum(features: Tensor) -> Tensor:
    return features / (features.sum(-1, keepdim=True) + FEATURE_SUM_EPS)


class LinearAttention(nn.Module):
    """x [1, T, D] -> [1, T, D]. Source: arXiv:2006.16236; layer as in flash-linear-attention's LinearAttention."""

    def __init__(self, spec: LinearSpec, width: int, eps: float) -> None:
        super().__init__()
        self.spec = spec
        kept = spec.kv_heads or spec.heads
        self.q_proj = Linear(width, spec.heads * spec.key_dim)
        self.k_proj = Linear(width, kept * spec.key_dim)
        self.v_proj = Linear(width, kept * spec.value_dim)
        self.q_map = feature_map(spec.feature_map, spec.key_dim)
        if spec.tied_maps:
            self._map_k: Callable[[Tensor], Tensor] = self._query_map
        else:
            self.k_map = feature_map(spec.feature_map, spec.key_dim)
            self._map_k = self._key_map
        self._norm_q = _over_its_sum if spec.norm_q else _as_it_is
        self._norm_k = _over_its_sum if spec.norm_k else _as_it_is
        self.o_norm = RMSNorm(spec.value_dim, eps) if spec.norm_weight else UnweightedRMSNorm(spec.value_dim, eps)
        self.o_proj = Linear(spec.heads * spec.value_dim, width)
        self._memory = AdditiveMemory if spec.normalize else UnnormalisedMemory
        self._repeats = spec.heads // kept

    def new_memory(self, store: Store) -> AdditiveMemory | UnnormalisedMemory:
        """An additive matrix memory over `store`."""
        return self._memory(store)

    def _query_map(self, k: Tensor) -> Tensor:
        return self.q_map(k)

    def _key_map(self, k: Tensor) -> Tensor:
        return self.k_map(k)

    def forward(self, x: Tensor, memory: AdditiveMemory | UnnormalisedMemory, segments: Segments) -> Tensor:
        keys, values = (-1, self.spec.key_dim), (-1, self.spec.value_dim)
        q = self._norm_q(self.q_map(self.q_proj(x).unflatten(-1, keys)))
        k = self._norm_k(self._map_k(self.k_proj(x).unflatten(-1, keys)))
        v = self.v_proj(x).unflatten(-1, values)
        k, v = (shared.repeat_interleave(self._repeats, dim=-2) for shared in (k, v))
        o = memory.mix(LinearInputs(q, k, v), segments)
        return self.o_proj(self.o_norm(o).flatten(-2))
