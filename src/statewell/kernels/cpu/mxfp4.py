"""Experts in MXFP4: products straight from the bytes for few tokens, unpacked in pieces for many."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from statewell.kernels.cpu.binding import address, compiled, instruction_set, threads
from statewell.kernels.cpu.expert_rows import Combine, Spread, expert_order
from statewell.kernels.packed import ExpertStream, Packed

# Above this many tokens a torch product on unpacked rows is faster, unpacking counted (docs/design/packed-experts.md).
MOST_DIRECT = 128
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
        hidden = activation(*products(rows[spans[e]], (w1, w3)))
        outputs[spans[e]] = products(hidden, (w2,))[0]
    return Combine.apply(outputs, weight, place)


def products(x: Tensor, matrices: Sequence[Packed]) -> list[Tensor]:
    """x [n, in] times each of the matrices, all [out, in], transposed: [n, out] each."""
    x = x.contiguous()
    n, D = x.shape
    out = matrices[0].packed.shape[0]
    made = [x.new_empty(n, out) for _ in matrices]
    if n > MOST_DIRECT:
        return [_product_in_pieces(x, w, into) for w, into in zip(matrices, made, strict=True)]
    packed, scale = ([part.contiguous() for part in parts] for parts in zip(*matrices, strict=True))
    addresses = torch.tensor([[t.data_ptr() for t in tensors] for tensors in (packed, scale, made)], dtype=torch.int64)
    compiled().mxfp4_products(
        instruction_set(), threads(), address(x), *(address(row) for row in addresses), len(matrices), n, out, D
    )
    return made


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
