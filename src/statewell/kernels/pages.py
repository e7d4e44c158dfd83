"""Where the kept tokens of a growing cache lie: pages that several rows, and several kept tensors, may share.

A page is one flat buffer. It holds `tokens` tokens of every tensor that is kept in it, one tensor after the other, so
that one list of pages per row serves all layers of a model. Attention over kept tokens reads the pages where they lie.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from statewell.errors import ShapeError


@dataclass(frozen=True)
class Pages:
    """The pages of N rows.

    buffers: of each row, flat tensors [numel], in the order of the tokens. lengths: tokens each row holds, at least 1.
    tokens: per page; a multiple of 64, or every row has one page.
    """

    buffers: Sequence[Sequence[Tensor]]
    lengths: tuple[int, ...]
    tokens: int

    def __post_init__(self) -> None:
        if self.tokens % 64 and self.most > 1:
            raise ShapeError(f"pages of {self.tokens} tokens: with more than one a row they hold a multiple of 64.")
        for row, length in zip(self.buffers, self.lengths, strict=True):
            if not 1 <= length <= len(row) * self.tokens:
                raise ShapeError(f"{length} tokens do not lie in {len(row)} pages of {self.tokens}; give them all.")

    @cached_property
    def most(self) -> int:
        """P, the pages of the row that has the most."""
        return max(len(row) for row in self.buffers)

    @cached_property
    def addresses(self) -> array[int]:
        """[N * P] int64: where each row's pages begin in memory; 0 past its last. Valid while the buffers live."""
        padded = ([b.data_ptr() for b in row] + [0] * (self.most - len(row)) for row in self.buffers)
        return array("q", chain.from_iterable(padded))

    def only(self, rows: Sequence[int]) -> Pages:
        """The pages of some of the rows, by their place here."""
        return Pages([self.buffers[n] for n in rows], tuple(self.lengths[n] for n in rows), self.tokens)


@dataclass(frozen=True)
class Kept:
    """One kept tensor in the pages of N rows: `shape` per token, from element `at` of every page on."""

    pages: Pages
    shape: tuple[int, ...]
    at: int = 0

    @cached_property
    def width(self) -> int:
        """Elements per token."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the pages."""
        return self.pages.buffers[0][0].dtype

    def row(self, n: int) -> Tensor:
        """All the tokens of row n, [S, *shape]; a copy where they lie in more than one page."""
        end = self.at + self.pages.tokens * self.width
        parts = [buffer[self.at : end].view(-1, *self.shape) for buffer in self.pages.buffers[n]]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole[: self.pages.lengths[n]]

    def only(self, rows: Sequence[int]) -> Kept:
        """The same tensor of some of the rows, by their place here."""
        return Kept(self.pages.only(rows), self.shape, self.at)
