"""Two memories that keep something of every token: attention's keys and values, and the latent rows of MLA.

Nothing is forgotten and nothing is corrected: a write appends, a read weighs everything held by softmax. `mix` attends
within the stream where every segment starts empty, and otherwise over each row's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from statewell.kernels import ops
from statewell.memory.base import Memory
from statewell.memory.segments import Segments
from statewell.memory.store import RowStore


class KVInputs(NamedTuple):
    """q: [1, T, H, K]. k, v: [1, T, Hk, K], H a multiple of Hk. Without T for one token of each row."""

    q: Tensor
    k: Tensor
    v: Tensor


class LatentInputs(NamedTuple):
    """q: [1, T, H, Kn+P]. latent: [1, T, R], normed. rope: [1, T, P], shared by the heads. up: [H, Kn+V, R], the weight
    that
    makes keys (first Kn rows) and values from a latent; the same for every token.
    """

    q: Tensor
    latent: Tensor
    rope: Tensor
    up: Tensor


def _append_one(store: RowStore, named: dict[str, Tensor]) -> None:
    """One more token for every row."""
    rows = len(store.lengths)
    segments = Segments.equal(rows, 1, tuple(range(rows)), tuple(store.lengths))
    for name, x in named.items():
        store.append(name, segments, x)
    store.advance(segments)


def _over_rows(segments: Segments, q: Tensor, attend: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Each segment's queries [1, t, H, K] over all its row holds, joined along the stream again."""
    rows = segments.rows or tuple(range(segments.count))
    parts = q.split(segments.lengths, dim=1)
    return torch.cat([attend(row, part) for row, part in zip(rows, parts, strict=True)], dim=1)


class KVMemory(Memory[KVInputs]):
    """Attention's cache: every key and value so far, 2 x Hk x K values per token; H/Hk query heads share a key head."""

    def forget(self, x: KVInputs) -> None:
        """Nothing fades."""

    def write(self, x: KVInputs) -> None:
        _append_one(self.kept, {"k": x.k, "v": x.v})

    def read(self, x: KVInputs) -> Tensor:
        outputs = []
        for row, q in enumerate(x.q):
            held = (self.kept.held(name, row).to(q.dtype) for name in ("k", "v"))
            k, v = (part.repeat_interleave(len(q) // part.shape[1], dim=1) for part in held)
            weights = (torch.einsum("hk,shk->hs", q, k) * q.shape[-1] ** -0.5).softmax(-1)
            outputs.append(torch.einsum("hs,shv->hv", weights, v))
        return torch.stack(outputs)

    def mix(self, x: KVInputs, segments: Segments) -> Tensor:
        self.store.append("k", segments, x.k[0])
        self.store.append("v", segments, x.v[0])
        self.store.advance(segments)
        if segments.fresh:
            return ops.attention(x.q, x.k, x.v, cu_seqlens=segments.cu_seqlens)
        return _over_rows(segments, x.q, self._attend)

    def _attend(self, row: int, q: Tensor) -> Tensor:
        k, v = self.kept.held("k", row), self.kept.held("v", row)
        return ops.attention(q, k[None].to(q.dtype), v[None].to(q.dtype))


class LatentMemory(Memory[LatentInputs]):
    """MLA's cache: R+P values per token for all heads together, expanded never. Source: K3 release, Gated MLA.

    A pass from empty memory makes keys and values of its own tokens, as training does; over a cache the query goes down
    to
    the latents instead (absorbed), and only the result comes up.
    """

    def forget(self, x: LatentInputs) -> None:
        """Nothing fades."""

    def write(self, x: LatentInputs) -> None:
        _append_one(self.kept, {"latent": x.latent, "rope": x.rope})

    def read(self, x: LatentInputs) -> Tensor:
        outputs = []
        nope = x.q.shape[-1] - x.rope.shape[-1]
        for row, q in enumerate(x.q):
            latent, rope = self.kept.held("latent", row).to(q.dtype), self.kept.held("rope", row).to(q.dtype)
            k = torch.einsum("hkr,sr->shk", x.up[:, :nope], latent)
            v = torch.einsum("hvr,sr->shv", x.up[:, nope:], latent)
            scores = torch.einsum("hk,shk->hs", q[:, :nope], k) + torch.einsum("hp,sp->hs", q[:, nope:], rope)
            outputs.append(torch.einsum("hs,shv->hv", (scores * q.shape[-1] ** -0.5).softmax(-1), v))
        return torch.stack(outputs)

    def mix(self, x: LatentInputs, segments: Segments) -> Tensor:
        self.store.append("latent", segments, x.latent[0])
        self.store.append("rope", segments, x.rope[0])
        self.store.advance(segments)
        if segments.fresh:
            return ops.mla(x.q, x.latent, x.rope, x.up, cu_seqlens=segments.cu_seqlens)

        def attend(row: int, q: Tensor) -> Tensor:
            latent, rope = self.kept.held("latent", row), self.kept.held("rope", row)
            return ops.mla_absorbed(q, latent[None].to(q.dtype), rope[None].to(q.dtype), x.up)

        return _over_rows(segments, x.q, attend)
