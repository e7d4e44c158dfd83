"""The residual stream as a value: a sublayer reads it, and adding to it makes a new one.

A stream that was changed in place breaks recomputation in backward, so both kinds are tuples of tensors. Each sublayer
has
a site, which holds what reading there needs: nothing for the plain stream, a query for attention residuals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from statewell.config.layers import AttnResSpec, StreamSpec
from statewell.kernels import ops
from statewell.models.parts import empty


class PlainStream(NamedTuple):
    """One running sum, h [1, T, D]."""

    h: Tensor

    def read(self, site: PlainSite) -> Tensor:
        """What the sublayer at `site` works on."""
        return self.h

    def add(self, site: PlainSite, delta: Tensor) -> PlainStream:
        """The stream after the sublayer at `site` gave `delta`."""
        return PlainStream(self.h + delta)


class PlainSite(nn.Module):
    """Reading the plain stream needs nothing."""


class AttnResStream(NamedTuple):
    """The sums of the closed groups and the running one, p, each [1, T, D]. Source: K3 report, attention residuals."""

    summaries: tuple[Tensor, ...]
    p: Tensor

    def read(self, site: AttnResSite) -> Tensor:
        """The site's softmax mix over all sums so far."""
        return site(self)

    def add(self, site: AttnResSite, delta: Tensor) -> AttnResStream:
        """The stream after the sublayer at `site` gave `delta`; a closing site starts a new sum with it."""
        return site.advance(self, delta)


def _accumulate(stream: AttnResStream, delta: Tensor) -> AttnResStream:
    return AttnResStream(stream.summaries, stream.p + delta)


def _close(stream: AttnResStream, delta: Tensor) -> AttnResStream:
    # after the site's read and before its add: the read still saw the sum as a running one
    return AttnResStream((*stream.summaries, stream.p), delta)


class AttnResSite(nn.Module):
    """One read of an AttnRes stream: norm_weight and query [D]. `closes`: the running sum becomes a summary here."""

    def __init__(self, width: int, eps: float, closes: bool) -> None:
        super().__init__()
        self.norm_weight = empty(width)
        self.query = empty(width)
        self.eps = eps
        self.advance: Callable[[AttnResStream, Tensor], AttnResStream] = _close if closes else _accumulate

    def forward(self, stream: AttnResStream) -> Tensor:
        return ops.attn_res((*stream.summaries, stream.p), self.norm_weight, self.query, self.eps)


Stream = PlainStream | AttnResStream
Site = PlainSite | AttnResSite


def site(spec: StreamSpec, width: int, eps: float, closes: bool) -> Site:
    """The site of one sublayer, or of the output."""
    return AttnResSite(width, eps, closes) if isinstance(spec, AttnResSpec) else PlainSite()


def closes_group(spec: StreamSpec, sublayer: int) -> bool:
    """Whether 0-based `sublayer` closes a group: each that begins one does, the first closing the embedding's sum.

    Layer i's mixer is sublayer 2i, its FFN 2i + 1; groups of whole layers close at mixers alone.
    """
    return isinstance(spec, AttnResSpec) and sublayer % spec.sublayers == 0


def start(spec: StreamSpec, embedded: Tensor) -> Stream:
    """The stream that holds only the embedding."""
    return AttnResStream((), embedded) if isinstance(spec, AttnResSpec) else PlainStream(embedded)
