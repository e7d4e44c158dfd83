"""Experts in MXFP4: products straight from the bytes for few tokens, unpacked in pieces for many."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from statewell.kernels.cpu.binding import address, compiled, instruction_set, threads
from statewell.kernels.cpu.expert_rows import Combine, Spread, expert_order
from statewell.kernels.packed import ExpertStream, Packed

# Above this many tokens a torch product on unpacked rows is faster, unpacking counted (docs/design/packed-experts.md).
MOST_DIRECT = 32
PIECE = 1 << 20  # numbers unpacked at a time: 4 MiB, which stay in the caches


def mxfp4_dequantise(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """As the reference, in float32."""
    *leading, half = packed.shape
    made = torch.empty(*leading, 2 * half)
    _unpack(Packed(packed.contiguous(), scale.contiguous()), made.view(-1, 2 * half))
    return made


def packed_experts(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    experts: ExpertStream,
    activation: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """As the reference, in float32 and without gradients; the rows are moved once each way."""
    used, local = torch.unique(index, return_inverse=True)  # rows are counted for the experts that have some alone
    order, place, counts = expert_order(local, len(used))
    rows = Spread.apply(x, order, place)  # [M*k, D]
    ends = counts.cumsum(0).tolist()
    spans = {e: slice(end - count, end) for e, end, count in zip(used.tolist(), ends, counts.tolist(), strict=True)}
    outputs = torch.empty_like(rows)
    for e, (w1, w3, w2) in experts(list(spans)):
        given = rows[spans[e]]
        hidden = activation(*(product(given, w, given.new_empty(len(given), len(w.scale))) for w in (w1, w3)))
        product(hidden.contiguous(), w2, outputs[spans[e]])
    return Combine.apply(outputs, weight, place)


def product(x: Tensor, w: Packed, into: Tensor) -> Tensor:
    """`into` [n, out], filled with x [n, in] w^T; x and `into` are contiguous."""
    n, D = x.shape
    w = Packed(w.packed.contiguous(), w.scale.contiguous())
    if n > MOST_DIRECT:
        return _product_in_pieces(x, w, into)
    compiled().mxfp4_product(
        instruction_set(),
        threads(),
        address(x),
        address(w.packed),
        address(w.scale),
        address(into),
        n,
        into.shape[1],
        D,
    )
    return into


def _product_in_pieces(x: Tensor, w: Packed, into: Tensor) -> Tensor:
    out, D = w.packed.shape[0], x.shape[1]
    unpacked = x.new_empty(max(1, min(out, PIECE // D)), D)
    for start in range(0, out, len(unpacked)):
        rows = slice(start, min(out, start + len(unpacked)))
        piece = unpacked[: rows.stop - rows.start]
        _unpack(Packed(w.packed[rows], w.scale[rows]), piece)
        torch.mm(x, piece.T, out=into[:, rows])
    return into


def _unpack(w: Packed, into: Tensor) -> None:
    compiled().mxfp4_unpack(
        instruction_set(), threads(), address(w.packed), address(w.scale), address(into), *into.shape
    )
