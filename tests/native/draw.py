"""What the stored vectors are drawn from: seeded numbers that are the same on every processor, and of tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

Vectors = dict[str, Tensor]

RULES = ("additive", "delta", "gated_delta", "kda")  # in the order of csrc/delta.h


class Draw:
    """Numbers that are exact in float32, and the same on every processor: sums of uniform ones, made in float64."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (scale * (self.uniform(12, *shape).double().sum(0) - 6)).float()

    def unit(self, *shape: int) -> Tensor:
        return F.normalize(self.normal(*shape).double(), dim=-1).float()

    def positive(self, *shape: int) -> Tensor:
        return (F.elu(self.normal(*shape).double()) + 1).float()

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self._generator)


def whole(*values: int) -> Tensor:
    return torch.tensor(values)


def number(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def recurrent_inputs(draw: Draw, rule: str, tokens: int, H: int, HV: int, K: int, V: int, strong: bool) -> Vectors:
    """q, k, v, g and beta as far as the rule has them; `strong` makes some tokens forget all there was."""
    made = {"q": draw.unit(tokens, H, K), "k": draw.unit(tokens, H, K), "v": draw.normal(tokens, HV, V)}
    if rule in ("gated_delta", "kda"):
        made["g"] = -draw.uniform(tokens, HV, *([K] if rule == "kda" else []))
        if strong:
            made["g"][3::7] = -1000.0
            made["g"][5::11, ..., ::2] = -104.0
    if rule != "additive":
        made["beta"] = draw.uniform(tokens, HV)
    return made
