"""The feature maps φ of linear attention: what takes the exponential's place. x [..., H, K] -> [..., H, features].

Names and formulas as in flash-linear-attention's `feature_map.py`; learned maps share their weights among heads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewell.models.parts import Linear

DPFP_ROLLS = 4  # each makes 2 K products: arXiv:2102.11174, section 3.3


class Elementwise(nn.Module):
    """A function of each entry, without weights."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x)


class ElementwiseProduct(nn.Module):
    """The product of two projections, entry by entry: any sign, quadratic in x."""

    def __init__(self, key_dim: int) -> None:
        super().__init__()
        self.layer1 = Linear(key_dim, key_dim, bias=True)
        self.layer2 = Linear(key_dim, key_dim, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer1(x) * self.layer2(x)


class Hedgehog(nn.Module):
    """softmax of [2 W x, -2 W x], twice as wide. Source: arXiv:2402.04347."""

    def __init__(self, key_dim: int) -> None:
        super().__init__()
        self.layer = Linear(key_dim, key_dim, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        y = 2 * self.layer(x)
        return torch.cat((y, -y), dim=-1).softmax(-1)


class T2R(nn.Module):
    """relu of a projection. Source: arXiv:2103.13076."""

    def __init__(self, key_dim: int) -> None:
        super().__init__()
        self.layer = Linear(key_dim, key_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu()


def elu_plus_one(x: Tensor) -> Tensor:
    """ELU(x) + 1, above 0 everywhere. Source: arXiv:2006.16236, equation 7."""
    return F.elu(x) + 1


def dpfp(x: Tensor) -> Tensor:
    """Products of [relu x, relu -x] with itself rolled by 1 to 4 places, eight times as wide.

    Source: arXiv:2102.11174.
    """
    both = torch.cat((x.relu(), (-x).relu()), dim=-1)
    return torch.cat([both * both.roll(shift, dims=-1) for shift in range(1, DPFP_ROLLS + 1)], dim=-1)


def _same(x: Tensor) -> Tensor:
    return x


_LEARNED: dict[str, Callable[[int], nn.Module]] = {
    "elementwise_product": ElementwiseProduct,
    "hedgehog": Hedgehog,
    "t2r": T2R,
}
_FIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": elu_plus_one,
    "relu": F.relu,
    "identity": _same,
    "dpfp": dpfp,
}


def feature_map(name: str, key_dim: int) -> nn.Module:
    """The map `name` of keys of `key_dim` entries."""
    return _LEARNED[name](key_dim) if name in _LEARNED else Elementwise(_FIXED[name])
