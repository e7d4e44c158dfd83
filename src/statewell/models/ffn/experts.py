"""The routed experts, wherever their weights are: in memory as numbers, in memory as MXFP4, or on a disk.

All three answer `forward(x, index, weight)`: x [..., D] with index and weight [..., top_k] -> [..., D], each token's
experts summed by weight. They know nothing of routers or files. Dense ones train; the other two only pass gradients on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from statewell.config.layers import LatentMoESpec, MoESpec
from statewell.kernels import ops
from statewell.kernels.packed import GROUP, Packed, PackedExpert
from statewell.models.ffn.mlp import glu
from statewell.models.parts import empty

MATRICES = ("w1", "w3", "w2")  # gate, up, down
Activate = Callable[[Tensor, Tensor], Tensor]


class DenseExperts(nn.Module):
    """E gated networks side by side: w1, w3 [E, I, inner], w2 [E, inner, I]."""

    def __init__(self, spec: MoESpec | LatentMoESpec, inner: int) -> None:
        super().__init__()
        self.w1 = empty(spec.experts, spec.width, inner)
        self.w3 = empty(spec.experts, spec.width, inner)
        self.w2 = empty(spec.experts, inner, spec.width)
        self._activate = glu(spec.activation)

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        w1, w3, w2 = (w.to(x.dtype) for w in (self.w1, self.w3, self.w2))
        rows = ops.experts(x.flatten(0, -2), index.flatten(0, -2), weight.flatten(0, -2), w1, w3, w2, self._activate)
        return rows.view(*x.shape[:-1], -1)


class ExpertSource(Protocol):
    """One layer's experts in MXFP4, one at a time."""

    def stream(self, numbers: Sequence[int]) -> Iterator[tuple[int, PackedExpert]]:
        """Each expert of `numbers` once, as soon as it can be had; its bytes are good until the next is asked for."""
        ...


def _streamed(x: Tensor, index: Tensor, weight: Tensor, source: ExpertSource, activate: Activate) -> Tensor:
    tokens, choices, shares = (t.flatten(0, -2) for t in (x, index, weight))
    return ops.packed_experts(tokens, choices, shares, source.stream, activate).view(x.shape)


class PackedExperts(nn.Module):
    """E gated networks in MXFP4: w1_packed, w3_packed [E, I, inner/2] and w2_packed [E, inner, I/2], uint8, each with
    its scales, w1_scale [E, I, inner/32] and so on. Half a byte a weight and one for 32 of them: 4.25 bits.
    """

    def __init__(self, spec: MoESpec | LatentMoESpec, inner: int) -> None:
        super().__init__()
        for name, (out, width) in matrix_shapes(spec, inner).items():
            for part, columns in (("packed", width // 2), ("scale", width // GROUP)):
                self.register_buffer(f"{name}_{part}", torch.empty(spec.experts, out, columns, dtype=torch.uint8))
        self._activate = glu(spec.activation)

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        return _streamed(x, index, weight, self, self._activate)

    def stream(self, numbers: Sequence[int]) -> Iterator[tuple[int, PackedExpert]]:
        """Views of the experts, in the order asked for."""
        for number in numbers:
            yield number, self.expert(number)

    def expert(self, number: int) -> PackedExpert:
        """One expert's matrices, as views that can be written."""
        pairs = ((f"{name}_packed", f"{name}_scale") for name in MATRICES)
        return PackedExpert(*(Packed(*(self.get_buffer(part)[number] for part in pair)) for pair in pairs))


class DiskExperts(nn.Module):
    """Experts that `source` brings when tokens choose them; nothing of them is a parameter or a buffer here."""

    def __init__(self, spec: MoESpec | LatentMoESpec, source: ExpertSource) -> None:
        super().__init__()
        self.source = source
        self._activate = glu(spec.activation)

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        return _streamed(x, index, weight, self.source, self._activate)


Experts = DenseExperts | PackedExperts | DiskExperts


def matrix_shapes(spec: MoESpec | LatentMoESpec, inner: int) -> dict[str, tuple[int, int]]:
    """[out, in] of each matrix of one expert that works at width `inner`."""
    return {"w1": (spec.width, inner), "w3": (spec.width, inner), "w2": (inner, spec.width)}
