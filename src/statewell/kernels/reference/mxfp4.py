"""MXFP4: what the packed bytes mean, how a matrix becomes such bytes, and experts that are kept in them.

A byte holds two inputs, the first in its low half; each half is a sign and one of eight magnitudes. 32 neighbouring
inputs share a scale byte e, worth 2^(e - 127); 255 is NaN.
Source: OCP Microscaling Formats v1.0 (E2M1, E8M0); quantising as compressed-tensors 0.20 does it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from statewell.kernels.packed import GROUP, ExpertStream, Packed, PackedExpert
from statewell.kernels.reference.precision import promoted

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BIAS = 127  # of a scale byte's exponent
NOT_A_NUMBER = 255  # the scale byte that stands for NaN
# Halfway between neighbours goes to the even code, so every second bound belongs to the magnitude above it.
_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_LARGEST = 6.0


def mxfp4_dequantise(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., out, in] in `dtype`: magnitude and sign times 2^(e - 127), exact wherever `dtype` reaches that far."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)  # [..., out, in], the low half first
    values = torch.tensor((*MAGNITUDES, *(-m for m in MAGNITUDES)), dtype=dtype, device=packed.device)
    groups = values[codes.long()].unflatten(-1, (-1, GROUP))
    return (groups * _scale(scale, dtype)[..., None]).flatten(-2)


def _scale(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """2^(e - 127), and NaN for the byte that stands for it."""
    powers = [2.0 ** (e - BIAS) for e in range(NOT_A_NUMBER)] + [float("nan")]
    return torch.tensor(powers, dtype=dtype, device=scale.device)[scale.long()]


def mxfp4_quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest fp4 numbers under a scale per group that puts its largest magnitude near 4 to 6.

    The largest, s 2^k with 1 <= s < 2, gives the scale 2^(k - 2), or twice that from s = 1.75 on; so s between 1.5 and
    1.75 saturates at 6. A group of zeros takes the smallest scale.
    """
    groups = weight.double().unflatten(-1, (-1, GROUP))
    fraction, exponent = torch.frexp(groups.abs().amax(dim=-1))  # fraction in [0.5, 1): s is twice that, k one less
    k = exponent - 1 + (2 * fraction >= 1.75).to(exponent.dtype)
    scale = (k - 2 + BIAS).clamp(0, NOT_A_NUMBER - 1).masked_fill(fraction == 0, 0).to(torch.uint8)
    scaled = groups / _scale(scale, torch.float64)[..., None]
    codes = _nearest(scaled.abs()) + 8 * torch.signbit(scaled).to(torch.uint8)
    codes = codes.flatten(-2)
    return codes[..., ::2] | codes[..., 1::2] << 4, scale


def _nearest(magnitude: Tensor) -> Tensor:
    """The code 0..7 of the closest magnitude."""
    code = torch.zeros(magnitude.shape, dtype=torch.uint8, device=magnitude.device)
    for place, bound in enumerate(_BOUNDS):
        # the bound below an even code is its own: a tie goes up to it
        code += magnitude >= bound if place % 2 else magnitude > bound
    return code


def packed_experts(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    experts: ExpertStream,
    activation: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """As `moe.experts`, one expert unpacked at a time into at least float32.

    A token's choices are summed in their order, whatever the order in which the experts came.
    """
    dtype = promoted(x, weight)
    flat = index.reshape(-1)
    order = flat.argsort(stable=True)  # place in the sorted rows -> (token, choice)
    used, counts = torch.unique(flat, return_counts=True)
    places = dict(zip(used.tolist(), order.split(counts.tolist()), strict=True))
    made = dict[int, Tensor]()
    for e, expert in experts(list(places)):
        rows = x.index_select(0, places[e] // index.shape[1]).to(dtype)
        made[e] = packed_expert(rows, expert, activation)
    outputs = torch.cat([x.new_empty(0, x.shape[1], dtype=dtype), *(made[e] for e in places)])
    chosen = torch.empty_like(outputs).index_copy(0, order, outputs).view(*index.shape, x.shape[1])  # [M, k, D]
    return (chosen * weight.to(dtype)[..., None]).sum(dim=1).to(x.dtype)


def packed_expert(rows: Tensor, expert: PackedExpert, activation: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """w2 activation(w1 rows, w3 rows), rows [n, D], in the dtype of `rows`."""

    def product(x: Tensor, w: Packed) -> Tensor:
        return x @ mxfp4_dequantise(w.packed, w.scale, x.dtype).T

    return product(activation(product(rows, expert.w1), product(rows, expert.w3)), expert.w2)
