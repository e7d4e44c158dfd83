"""How tokens lie in chunks: every row or packed segment cut into chunks of C tokens, the last one padded.

A chunk is always C tokens, so no shape, and so no rounding, depends on a length. Chunks are listed by their position in
the segment, and at one position by rank (longest segment first), so that those which still have a chunk at the next
position are a prefix of the states. Knows nothing about what is computed. Start at `lay_out`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

C = 64  # tokens per chunk
# Numbers of one temporary of a group: small enough to stay near the cores, large enough to hide the cost of a call.
GROUP_NUMBERS = 2**18
LANES = 8


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

    count: B * T, the tokens there are. tokens: [NC, C] int64, the flat token at each place, `count` where there is none.
    padded: whether each chunk holds such places. widths: chunks at each position.
    order: [N], the segment of each rank; rank_of: [N], its inverse.
    """

    count: int
    tokens: Tensor
    padded: list[bool]
    widths: list[int]
    order: Tensor
    rank_of: Tensor

    def groups(self, size: int, HV: int) -> list[Group]:
        """All chunks in order, at most `size` at a time."""
        NC = len(self.padded)
        pieces: list[list[Piece]] = [[] for _ in range(0, NC, size)]
        first = 0
        for width in self.widths:
            start = first
            while start < first + width:
                number = start // size
                stop = min(first + width, (number + 1) * size)
                rows = slice((start - number * size) * HV, (stop - number * size) * HV)
                states = slice((start - first) * HV, (stop - first) * HV)
                pieces[number].append(Piece(rows=rows, states=states))
                start = stop
            first += width
        return [
            Group(start=number * size, stop=min((number + 1) * size, NC), pieces=tuple(cut))
            for number, cut in enumerate(pieces)
        ]

    def gather(self, x: Tensor, group: Group, HV: int, dtype: torch.dtype) -> Tensor:
        """The chunks of a group as matrices [n * HV, C, D] in `dtype`, zero where there is no token.

        x: [B, T, heads, D]; value head h takes head h // (HV / heads) of it.
        """
        heads, D = x.shape[2:]
        rows = self._rows(group, heads, HV).clamp_(max=self.count * heads - 1)
        chunks = x.reshape(-1, D).index_select(0, rows).to(dtype).view(-1, C, D)
        if any(self.padded[group.start : group.stop]):
            absent = self.tokens[group.start : group.stop] == self.count  # [n, C]
            chunks.view(-1, HV, C, D).masked_fill_(absent[:, None, :, None], 0)
        return chunks

    def new_rows(self, like: Tensor, HV: int, D: int, dtype: torch.dtype) -> Tensor:
        """Room for HV rows of D numbers for every token, and for what padding yields after them."""
        return like.new_empty((self.count + 1) * HV, D, dtype=dtype)

    def scatter_(self, rows: Tensor, chunks: Tensor, group: Group, HV: int) -> None:
        """Put the chunks [n * HV, C, D] of a group where their tokens are in `rows`."""
        rows.index_copy_(0, self._rows(group, HV, HV), chunks.reshape(-1, rows.shape[1]).to(rows.dtype))

    def tokens_of(self, rows: Tensor, shape: torch.Size, HV: int) -> Tensor:
        """`rows` as [B, T, HV, D], without what padding yielded. shape: [B, T]."""
        return rows[: self.count * HV].view(*shape, HV, rows.shape[1])

    def gradient_of(self, x: Tensor, rows: Tensor, HV: int) -> Tensor:
        """`rows` as the gradient of x [B, T, heads, D]: summed over the value heads that share a head of x."""
        heads = x.shape[2]
        gradient = self.tokens_of(rows, x.shape[:2], HV)
        if heads < HV:
            gradient = gradient.unflatten(2, (heads, HV // heads)).sum(3)
        return gradient.to(x.dtype)

    def _rows(self, group: Group, heads: int, HV: int) -> Tensor:
        """Index of each (token, head) of a group in x viewed as [B * T * heads, D]; flat over [n, HV, C]."""
        tokens = self.tokens[group.start : group.stop, None, :] * heads
        head = torch.arange(HV, device=tokens.device) // (HV // heads)
        return (tokens + head[:, None]).view(-1)


def lay_out(B: int, T: int, cu_seqlens: Tensor | None, device: torch.device) -> ChunkLayout:
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
    positions = torch.arange(int(counts.max()), device=device)
    # nonzero lists by position first, then by rank
    position, rank = (counts > positions[:, None]).nonzero(as_tuple=True)
    tokens = (starts[rank] + position * C)[:, None] + torch.arange(C, device=device)
    absent = tokens >= ends[rank][:, None]
    return ChunkLayout(
        count=B * T,
        tokens=tokens.masked_fill(absent, B * T),
        padded=absent[:, -1].tolist(),
        widths=torch.bincount(position).tolist(),
        order=order,
        rank_of=torch.argsort(order),
    )


def chunks_per_group(HV: int, K: int, V: int) -> int:
    """How many chunks are worked on together."""
    return max(1, GROUP_NUMBERS // (HV * C * max(K, V, C)))


def fit_channels(x: Tensor) -> Tensor:
    """x with zero channels appended up to a multiple of LANES.

    Then every matrix of a batch starts at an aligned address. Where it does not, the matrix library was seen to round
    differently with the place in the batch, and results would depend on what else is in it.
    """
    missing = -x.shape[-1] % LANES
    return torch.nn.functional.pad(x, (0, missing)) if missing else x
