"""How tokens lie in chunks: every row or packed segment cut into chunks of C tokens, the last one padded.

A chunk is always C tokens, so no shape, and so no rounding, depends on a length. Chunks are listed by their position in
the segment, and at one position by rank (longest segment first), so that those which go on at the next position are a
prefix of the states. Knows nothing about what is computed. Start at `lay_out`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

C = 64  # tokens per chunk
# Numbers in one temporary of a group: small enough to stay near the cores and to reuse the allocator's memory, large
# enough to hide the cost of a call (K = V = 16 to 128: twice as many gain nothing, half as many cost up to 15%).
GROUP_NUMBERS = 2**18
LANES = 8  # channels are padded to a multiple of this, see `fit_channels`


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Chunks that run at once: `rows` are theirs among the group's n * HV matrices, `states` those among all N * HV."""

    rows: slice
    states: slice


@dataclass(frozen=True, kw_only=True)
class Group:
    """Chunks start .. stop of the list, worked on together; `pieces` cuts them by position, in order."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, kw_only=True)
class ChunkLayout:
    """The chunks of one call.

    count: B * T, the tokens there are. HV: matrices a chunk. tokens: [NC, C] int64, the flat token at each place,
    `count` where there is none. padded: whether each chunk holds such places. widths: chunks at each position.
    order: [N], the segment of each rank; rank_of: [N], its inverse.
    """

    count: int
    HV: int
    tokens: Tensor
    padded: list[bool]
    widths: list[int]
    order: Tensor
    rank_of: Tensor

    def groups(self, widest: int, halved: bool) -> list[Group]:
        """All chunks in order, in groups of bounded size.

        widest: channels of the widest matrix. halved: at most half of all chunks in a group, so that what the backward
        needs for one group stays small beside what it keeps for all.
        """
        NC = len(self.padded)
        size = max(1, GROUP_NUMBERS // (self.HV * C * max(widest, C)))
        if halved:
            size = min(size, max(1, -(-NC // 2)))
        pieces: list[list[Piece]] = [[] for _ in range(0, NC, size)]
        first = 0
        for width in self.widths:
            start = first
            while start < first + width:
                number = start // size
                stop = min(first + width, (number + 1) * size)
                rows = slice((start - number * size) * self.HV, (stop - number * size) * self.HV)
                states = slice((start - first) * self.HV, (stop - first) * self.HV)
                pieces[number].append(Piece(rows=rows, states=states))
                start = stop
            first += width
        return [
            Group(start=number * size, stop=min((number + 1) * size, NC), pieces=tuple(cut))
            for number, cut in enumerate(pieces)
        ]

    def gather(self, x: Tensor, group: Group, dtype: torch.dtype) -> Tensor:
        """The chunks of a group as matrices [n * HV, C, D] in `dtype`, a fresh tensor, zero where there is no token.

        x: [B, T, heads, D]; value head h takes head h // (HV / heads) of it.
        """
        heads, D = x.shape[2:]
        places = self.places(group, heads).clamp_(max=self.count * heads - 1)
        chunks = x.reshape(-1, D).index_select(0, places).to(dtype).view(-1, C, D)
        if any(self.padded[group.start : group.stop]):
            absent = self.tokens[group.start : group.stop] == self.count  # [n, C]
            chunks.view(-1, self.HV, C, D).masked_fill_(absent[:, None, :, None], 0)
        return chunks

    def places(self, group: Group, heads: int) -> Tensor:
        """Row of each (chunk, value head, token) of a group in x [B, T, heads, D] seen as [B * T * heads, D]; flat."""
        tokens = self.tokens[group.start : group.stop, None, :] * heads
        head = torch.arange(self.HV, device=tokens.device) // (self.HV // heads)
        return (tokens + head[:, None]).view(-1)

    def by_rank(self, state: Tensor) -> Tensor:
        """A copy of the states [N, HV, K, V] as [N * HV, K, V], longest segment first."""
        return state[self.order].flatten(0, 1)

    def by_segment(self, carried: Tensor) -> Tensor:
        """States by rank back as [N, HV, K, V]."""
        return carried.unflatten(0, (-1, self.HV))[self.rank_of]


class TokenRows:
    """Chunks put back where their tokens are, group by group; room is taken when the first one comes."""

    def __init__(self, layout: ChunkLayout, like: Tensor, dtype: torch.dtype) -> None:
        """like: [B, T, heads, D], the tensor whose tokens these are. dtype: that of the rows."""
        self.layout, self.like, self.dtype = layout, like, dtype
        self.rows: Tensor | None = None  # [(count + 1) * HV, D]; what padding yields goes to the last HV

    def put(self, chunks: Tensor, group: Group) -> None:
        """Take the matrices [n * HV, C, D] of a group."""
        D = chunks.shape[2]
        if self.rows is None:
            self.rows = chunks.new_empty((self.layout.count + 1) * self.layout.HV, D, dtype=self.dtype)
        places = self.layout.places(group, self.layout.HV)
        self.rows.index_copy_(0, places, chunks.reshape(-1, D).to(self.dtype))

    def per_value_head(self) -> Tensor:
        """All rows as [B, T, HV, D]."""
        (B, T), HV, D = self.like.shape[:2], self.layout.HV, self.like.shape[3]
        if self.rows is None:
            return self.like.new_empty(B, T, HV, D, dtype=self.dtype)
        return self.rows[: self.layout.count * HV].view(B, T, HV, D)

    def gradient(self) -> Tensor:
        """All rows as the gradient of `like`: summed over the value heads that share one of its heads."""
        rows, heads = self.per_value_head(), self.like.shape[2]
        if heads < self.layout.HV:
            rows = rows.unflatten(2, (heads, self.layout.HV // heads)).sum(3)
        return rows.to(self.like.dtype)


def lay_out(B: int, T: int, HV: int, cu_seqlens: Tensor | None, device: torch.device) -> ChunkLayout:
    """Cut B rows of T tokens, or the segments of one packed row, into chunks."""
    if cu_seqlens is None:
        starts = torch.arange(B, device=device) * T
        ends = starts + T
    else:
        bounds = cu_seqlens.to(device=device, dtype=torch.int64)
        starts, ends = bounds[:-1], bounds[1:]
    order = torch.argsort(ends - starts, descending=True, stable=True)
    starts, ends = starts[order], ends[order]
    counts = (ends - starts + (C - 1)) // C  # [N] chunks of each rank
    positions = torch.arange(int(counts.max()) if len(counts) else 0, device=device)
    # nonzero lists by position first, then by rank
    position, rank = (counts > positions[:, None]).nonzero(as_tuple=True)
    tokens = (starts[rank] + position * C)[:, None] + torch.arange(C, device=device)
    absent = tokens >= ends[rank][:, None]
    return ChunkLayout(
        count=B * T,
        HV=HV,
        tokens=tokens.masked_fill(absent, B * T),
        padded=absent[:, -1].tolist(),
        widths=torch.bincount(position).tolist(),
        order=order,
        rank_of=torch.argsort(order),
    )


def fit_channels(x: Tensor) -> Tensor:
    """x with zero channels appended up to a multiple of LANES.

    Then every matrix of a batch starts at an aligned address. Where it does not, the matrix library was seen to round
    differently with the place in the batch, and results would depend on what else is in it.
    """
    missing = -x.shape[-1] % LANES
    return torch.nn.functional.pad(x, (0, missing)) if missing else x
