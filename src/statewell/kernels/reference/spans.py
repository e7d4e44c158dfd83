"""Decay over spans of tokens inside a chunk: products of exp(g), for blocks that double from one token to the chunk.

Only products of factors in [0, 1], in float64: nothing is divided, so nothing cancels or overflows. Start at `Spans`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from statewell.kernels.reference.triangle import HALVES


class Spans:
    """Products of exp(g) over spans of tokens, float64, for blocks that double from one token to a chunk."""

    def __init__(self, g: Tensor) -> None:
        self.since = g.to(torch.float64).exp()  # [M, C, K]: from the block's first token through each token
        self.until = torch.ones_like(self.since)  # after each token to the block's last

    def pairs(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each size of block: the size, and of two neighbours `until` of the first and `since` of the second.

        Then the two merge. When all are taken, `since` and `until` are those of the whole chunk.
        """
        for half in HALVES:
            since_first, since_second = halves(self.since, half)
            until_first, _ = halves(self.until, half)
            yield half, until_first, since_second
            until_first *= since_second[:, -1:]
            since_second *= since_first[:, -1:]


def halves(x: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Neighbouring blocks of `half` tokens, [M * C / 2half, half, ...] each, views of x [M, C, ...]."""
    both = x.view(-1, 2, half, *x.shape[2:])
    return both[:, 0], both[:, 1]


def unmerge_gradients(dsince: Tensor, duntil: Tensor, half: int) -> None:
    """Turn gradients of log spans of merged blocks into those before the merge, in place.

    The decay of a whole block is part of every span of its neighbour that crosses it.
    """
    since_first, since_second = halves(dsince, half)
    until_first, _ = halves(duntil, half)
    since_first[:, -1] += since_second.sum(1)
    since_second[:, -1] += until_first.sum(1)
