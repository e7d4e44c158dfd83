"""What stands between a projection and its memory: a short convolution and an activation, or the activation alone."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from statewell.memory.matrix import Tails
from statewell.memory.segments import Segments
from statewell.models.parts import empty

Activation = Callable[[Tensor], Tensor]


class ShortConv(nn.Module):
    """A causal depthwise convolution, then the activation; weight [D, W], bias [D] or none.

    The tokens before a segment come from its row's tail.
    """

    def __init__(self, width: int, taps: int, bias: bool, activation: Activation) -> None:
        super().__init__()
        self.weight = empty(width, taps)
        self.bias = empty(width) if bias else None
        self._activate = activation

    def forward(self, x: Tensor, name: str, tails: Tails, segments: Segments) -> Tensor:
        """x [1, T, D] -> [1, T, D], through the tail `name`."""
        y = tails.convolve(name, x, self.weight, segments)
        return self._activate(y if self.bias is None else y + self.bias.to(y.dtype))


class Unconvolved(nn.Module):
    """The activation alone, of models without convolutions: no weights, no tail."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self._activate = activation

    def forward(self, x: Tensor, name: str, tails: Tails, segments: Segments) -> Tensor:
        """x [1, T, D] -> [1, T, D]."""
        return self._activate(x)


def convolution(
    width: int, taps: int | None, bias: bool = False, activation: Activation = F.silu
) -> ShortConv | Unconvolved:
    """A convolution of `taps` taps over `width` channels, or none for None."""
    return Unconvolved(activation) if taps is None else ShortConv(width, taps, bias, activation)
