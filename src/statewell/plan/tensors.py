"""One tensor of a model by name and shape, and the projections most of them are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Weight:
    """One tensor. `used`: leading entries that one token uses, None for all (routed experts: top_k of them)."""

    name: str
    shape: tuple[int, ...]
    used: int | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def active(self) -> int:
        return self.count if self.used is None else self.used * math.prod(self.shape[1:])


def linear(name: str, out: int, inp: int, bias: bool = False) -> Iterator[Weight]:
    """The tensors of a projection from `inp` to `out` channels."""
    yield Weight(f"{name}.weight", (out, inp))
    if bias:
        yield Weight(f"{name}.bias", (out,))
