"""The products of all pairs of tokens of a chunk, as matrices whose diagonal blocks are one regular batch.

Every token has two readers: the first finds what is to be corrected (-beta k), the second what is asked for (q). So a
chunk of C tokens has 2 C rows of C products, the two of a token next to each other. Behind a chunk's rows lie C spare
numbers: with them the diagonal blocks of one size start at equal distances in all chunks and are one regular batch.
"""

from __future__ import annotations

from torch import Tensor, bmm

from statewell.kernels.reference.segments import C

HALVES = tuple(2**level for level in range(C.bit_length() - 1))  # 1, 2, ... C / 2
STEP = 2 * C + 1  # numbers from one diagonal place to the next


def new_products(like: Tensor, M: int) -> Tensor:
    """Zero products of M chunks [M, C * STEP] in the dtype and place of `like`."""
    return like.new_zeros(M, C * STEP)


def all_rows(products: Tensor) -> Tensor:
    """The rows of both readers, [M, 2 C, C]."""
    return products.as_strided((products.shape[0], 2 * C, C), (C * STEP, C, 1))


def correcting(products: Tensor) -> Tensor:
    """The rows of the first readers, [M, C, C]."""
    return all_rows(products)[:, 0::2]


def asking(products: Tensor) -> Tensor:
    """The rows of the second readers, [M, C, C]."""
    return all_rows(products)[:, 1::2]


def corners(products: Tensor, half: int) -> Tensor:
    """Second half against first half in each diagonal block of 2 * half tokens, [M * C / 2half, 2 * half, half]."""
    size = 2 * half
    shape, strides = (products.shape[0] * (C // size), 2 * half, half), (size * STEP, C, 1)
    return products.as_strided(shape, strides, half * 2 * C)


def invert_(products: Tensor) -> None:
    """Replace A, the first readers' rows below the diagonal, by (I - A)^-1.

    Blocks of one token are the identity; two inverted neighbours merge into one of twice the size. A product of powers
    of A would overflow on nearly parallel keys; merging stays at rounding (tests/kernels/test_chunkwise.py).
    """
    M = products.shape[0]
    products.as_strided((M, C), (C * STEP, STEP)).fill_(1)
    for half in HALVES[1:]:
        size = 2 * half
        block = products.as_strided((M * (C // size), size, size), (size * STEP, 2 * C, 1))
        corner = block[:, half:, :half]
        corner.copy_(bmm(block[:, half:, half:], bmm(corner, block[:, :half, :half])))
