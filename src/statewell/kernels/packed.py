"""Weights in MXFP4 as they lie in a file: two fp4 numbers a byte, one power of two for every 32 of them.

Source: OCP Microscaling Formats v1.0; laid out as compressed-tensors' `mxfp4-pack-quantized`. Names only: what the
bytes mean is in `reference/mxfp4.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

GROUP = 32  # inputs that share a scale


class Packed(NamedTuple):
    """A matrix [out, in]: packed [out, in/2] and scale [out, in/32], both uint8. Leading axes may come before."""

    packed: Tensor
    scale: Tensor


class PackedExpert(NamedTuple):
    """One gated network, w2 activation(w1 x, w3 x): w1, w3 [I, D] and w2 [D, I]."""

    w1: Packed
    w3: Packed
    w2: Packed


# Given the numbers of the experts that have work, each of them once with its weights, in whatever order they come by.
# The weights stay as they are until the next expert is asked for.
ExpertStream = Callable[[Sequence[int]], Iterator[tuple[int, PackedExpert]]]
