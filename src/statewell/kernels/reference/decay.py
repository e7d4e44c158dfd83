"""What forgetting does inside one chunk: nothing (delta), one fade per head (gated delta), one per key channel (KDA).

Each class gives the chunk algorithm the same few things: the factors from the chunk's start and to its end, the fade of
a state over the whole chunk, the decayed products of readers and keys, and the gradients of all these. A factor is the
product of exp(g) over one span of tokens, multiplied up in float64, and never a quotient: nothing cancels or overflows
however strong the decay is, and -inf is an ordinary value. Start at `ChannelDecay`.
Source: arXiv:2510.26692 (secondary chunking with past anchors), its anchors applied again down to single tokens, so
that no pairwise [c, c, K] tile is left.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, bmm

from statewell.kernels.reference.segments import C
from statewell.kernels.reference.spans import Spans, halves, unmerge_gradients
from statewell.kernels.reference.triangle import HALVES, all_rows, asking, corners, correcting, new_products

# Multiplications in a matrix product above which torch hands it to the matrix library; below, its own loop is slow.
LIBRARY_FROM = 400


class Faded(NamedTuple):
    """What the factors yielded, and the gradients of it.

    reading: [M, C, 2, K] readers since the start. k_end: [M, C, K] keys until the end.
    states: [M, K, V] at the chunk's start. dends: gradients of the states at its end.
    """

    reading: Tensor
    dreading: Tensor
    k_end: Tensor
    dk_end: Tensor
    states: Tensor
    dends: Tensor


class Pairs(NamedTuple):
    """Products, of which the second readers' rows are as they were made, and the gradients of all of them."""

    values: Tensor
    gradients: Tensor


class Gradients(NamedTuple):
    """Gradients of the readers [M, C, 2, K], of k [M, C, K] and of g as it was given."""

    readers: Tensor
    k: Tensor
    g: Tensor | None


class Decay(Protocol):
    """The decays of M chunks, ready to be applied. readers: [M, C, 2, K], as in triangle.py."""

    def since_start(self, readers: Tensor) -> Tensor:
        """The readers faded by all tokens from the chunk's first to their own."""
        ...

    def until_end(self, k: Tensor) -> Tensor:
        """k [M, C, K] faded by all tokens after its own."""
        ...

    def fade(self, state: Tensor, rows: slice) -> Tensor:
        """New states [m, K, V]: those of the chunks `rows`, faded by the whole chunk."""
        ...

    def products(self, readers: Tensor, k: Tensor) -> Tensor:
        """Readers of token i times key of token j <= i, faded by the tokens after j up to i; zero for j > i.

        On the diagonal only the second reader's products count: the first reads before the token's own write.
        """
        ...

    def gradients(self, readers: Tensor, k: Tensor, products: Pairs, faded: Faded) -> Gradients:
        """Gradients through the products and the factors; uses up `products.gradients` and all of `faded`."""
        ...


class NoDecay:
    """The delta rule's: nothing fades."""

    def __init__(self, k: Tensor, g: Tensor | None) -> None:
        self.tile = k.new_ones(C, C).tril_()

    def since_start(self, readers: Tensor) -> Tensor:
        return readers

    def until_end(self, k: Tensor) -> Tensor:
        return k

    def fade(self, state: Tensor, rows: slice) -> Tensor:
        return state.clone()

    def products(self, readers: Tensor, k: Tensor) -> Tensor:
        return _tile_products(readers, k, self.tile)

    def gradients(self, readers: Tensor, k: Tensor, products: Pairs, faded: Faded) -> Gradients:
        return Gradients(*_tile_gradients(readers, k, products.gradients, self.tile, faded), None)


class HeadDecay:
    """The gated delta rule's: the whole state fades by one number a token. g: [M, C, 1]."""

    def __init__(self, k: Tensor, g: Tensor) -> None:
        tile = k.new_zeros(g.shape[0], C + 1, C)
        tile[:, :C].diagonal(dim1=1, dim2=2).fill_(1)
        spans = Spans(g)
        for half, until_first, since_second in spans.pairs():
            _tile_corners(tile, half).copy_(since_second * until_first.mT)
        self.tile = tile[:, :C]  # [M, i, j]: the decay after j up to i, zero for j > i
        self.start, self.end = spans.since.to(k.dtype), spans.until.to(k.dtype)  # [M, C, 1]

    def since_start(self, readers: Tensor) -> Tensor:
        return _both(readers, self.start)

    def until_end(self, k: Tensor) -> Tensor:
        return k * self.end

    def fade(self, state: Tensor, rows: slice) -> Tensor:
        return state * self.start[rows, -1:]

    def products(self, readers: Tensor, k: Tensor) -> Tensor:
        return _tile_products(readers, k, self.tile)

    def gradients(self, readers: Tensor, k: Tensor, products: Pairs, faded: Faded) -> Gradients:
        dsince, duntil = (x.sum(-1, keepdim=True) for x in _factor_gradients(self, faded))
        # gradient of the logarithm of each decay after j up to i; the first readers' products were overwritten
        spare = k.new_empty(k.shape[0], C + 1, C)
        logs = spare[:, :C]
        torch.bmm(readers[:, :, 0], k.mT, out=logs)
        logs.mul_(self.tile).mul_(correcting(products.gradients))
        logs.addcmul_(asking(products.values), asking(products.gradients))
        dreaders, dk = _tile_gradients(readers, k, products.gradients, self.tile, faded)
        for half in reversed(HALVES):
            unmerge_gradients(dsince, duntil, half)
            corner = _tile_corners(spare, half)
            halves(dsince, half)[1].add_(corner.sum(2, keepdim=True))
            halves(duntil, half)[0].add_(corner.sum(1).unsqueeze(2))
        return Gradients(dreaders, dk, dsince)


class ChannelDecay:
    """KDA's: every key channel fades by its own number a token. g: [M, C, K].

    Tokens j < i meet in exactly one pair of neighbouring blocks of 1, 2, ... C / 2 tokens, j in the first block and i
    in the second. Their decay is the product of two factors, from j to the end of the first block and from the start of
    the second to i. So the products of all pairs are one batch of matrix products for each size of block.
    """

    def __init__(self, k: Tensor, g: Tensor) -> None:
        # per size of block [M, C, K]: to the block's end in first blocks, from the block's start in second
        self.factors: list[Tensor] = []
        spans = Spans(g)
        for half, until_first, since_second in spans.pairs():
            factor = torch.empty_like(k)
            first, second = halves(factor, half)
            first.copy_(until_first)
            second.copy_(since_second)
            self.factors.append(factor)
        self.start, self.end = spans.since.to(k.dtype), spans.until.to(k.dtype)  # [M, C, K]

    def since_start(self, readers: Tensor) -> Tensor:
        return _both(readers, self.start)

    def until_end(self, k: Tensor) -> Tensor:
        return k * self.end

    def fade(self, state: Tensor, rows: slice) -> Tensor:
        return state * self.start[rows, -1, :, None]

    def products(self, readers: Tensor, k: Tensor) -> Tensor:
        products = new_products(k, k.shape[0])
        for half, factor in zip(HALVES, self.factors, strict=True):
            keys, reads = self._meeting(readers, k, factor, half)
            corners(products, half).copy_(bmm(reads.flatten(1, 2), keys.mT))
        own = (readers[:, :, 1] * k).sum(-1)
        asking(products).diagonal(dim1=1, dim2=2).copy_(own)
        return products

    def gradients(self, readers: Tensor, k: Tensor, products: Pairs, faded: Faded) -> Gradients:
        dsince, duntil = _factor_gradients(self, faded)
        dreaders, dk = faded.dreading, faded.dk_end
        own = asking(products.gradients).diagonal(dim1=1, dim2=2).unsqueeze(-1)
        dreaders[:, :, 1] += own * k
        dk += own * readers[:, :, 1]
        for half, factor in zip(reversed(HALVES), reversed(self.factors), strict=True):
            keys, reads = self._meeting(readers, k, factor, half)
            factor_first, factor_second = halves(factor, half)
            unmerge_gradients(dsince, duntil, half)
            corner = corners(products.gradients, half)
            dkeys = _product(corner.mT, reads.flatten(1, 2))
            dreads = _product(corner, keys).view_as(reads)
            logs = reads.mul_(dreads)
            since_second, until_first = halves(dsince, half)[1], halves(duntil, half)[0]
            since_second += logs[:, :, 0]
            since_second += logs[:, :, 1]
            until_first += keys.mul_(dkeys)
            halves(dk, half)[0].add_(dkeys.mul_(factor_first))
            halves(dreaders, half)[1].add_(_both(dreads, factor_second))
        return Gradients(dreaders, dk, dsince)

    @staticmethod
    def _meeting(readers: Tensor, k: Tensor, factor: Tensor, half: int) -> tuple[Tensor, Tensor]:
        """Keys of first blocks [n, half, K] and readers of second blocks [n, half, 2, K], faded to where they meet."""
        factor_first, factor_second = halves(factor, half)
        return halves(k, half)[0] * factor_first, _both(halves(readers, half)[1], factor_second)


def _factor_gradients(decay: HeadDecay | ChannelDecay, faded: Faded) -> tuple[Tensor, Tensor]:
    """Gradients of the logarithms of the factors from the start and to the end, [M, C, K] each.

    In place: of `faded`, dreading and dk_end become the gradients before the factors; the values are used up.
    """
    logs = faded.reading.mul_(faded.dreading)
    dstart = logs[:, :, 0] + logs[:, :, 1]
    dend = faded.k_end.mul_(faded.dk_end)
    dstart[:, -1] += decay.fade(faded.states, slice(None)).mul_(faded.dends).sum(-1)
    for reader in (0, 1):
        faded.dreading[:, :, reader].mul_(decay.start)
    faded.dk_end.mul_(decay.end)
    return dstart, dend


def _both(readers: Tensor, factor: Tensor) -> Tensor:
    """Both readers of each token [..., 2, K] times its factor [..., K or 1]; broadcasting is five times slower."""
    out = torch.empty_like(readers, memory_format=torch.contiguous_format)
    for reader in (0, 1):
        torch.mul(readers[:, :, reader], factor, out=out[:, :, reader])
    return out


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a [n, r, s] @ b [n, s, K]; term by term for tiny matrices, where that is several times faster."""
    (n, r, s), K = a.shape, b.shape[2]
    if r * s > 8 or r * s * K >= LIBRARY_FROM:
        return bmm(a, b)
    out = b.new_empty(n, r, K)
    for i in range(r):
        torch.mul(a[:, i, :1], b[:, 0], out=out[:, i])
        for j in range(1, s):
            out[:, i] += a[:, i, j : j + 1] * b[:, j]
    return out


def _tile_corners(tile: Tensor, half: int) -> Tensor:
    """Second half against first half of the diagonal blocks of 2 * half tokens, [n, half, half].

    tile: [M, C + 1, C]: with the spare row, the blocks of all chunks are one regular batch.
    """
    n = tile.shape[0] * C // (2 * half)
    return tile.as_strided((n, half, half), (2 * half * (C + 1), C, 1), half * C)


def _tile_products(readers: Tensor, k: Tensor, tile: Tensor) -> Tensor:
    """The products faded by tile [C, C] or [M, C, C], zero above its diagonal."""
    products = new_products(k, k.shape[0])
    rows = all_rows(products)
    torch.bmm(readers.flatten(1, 2), k.mT, out=rows)
    for reader in (0, 1):
        rows[:, reader::2].mul_(tile)
    return products


def _tile_gradients(readers: Tensor, k: Tensor, dproducts: Tensor, tile: Tensor, faded: Faded) -> tuple[Tensor, Tensor]:
    """Gradients of readers and k through the products and, already in `faded`, the factors; fades `dproducts`."""
    rows = all_rows(dproducts)
    for reader in (0, 1):
        rows[:, reader::2].mul_(tile)
    correcting(dproducts).diagonal(dim1=1, dim2=2).zero_()
    faded.dreading.flatten(1, 2).baddbmm_(rows, k)
    faded.dk_end.baddbmm_(rows.mT, readers.flatten(1, 2))
    return faded.dreading, faded.dk_end
