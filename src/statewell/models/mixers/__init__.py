"""The mixers: projections and gates of their own, then `memory.mix`. One file each; this is their registry.

A mixer answers `new_memory(store)` (the memory mechanism over a store) and `forward(x, memory, segments)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from statewell.config.mixers import (
    AttentionSpec,
    DeltaSpec,
    GatedDeltaSpec,
    KDASpec,
    LinearSpec,
    MixerSpec,
    MLASpec,
    RotaryAttentionSpec,
)
from statewell.memory.base import Memory
from statewell.memory.segments import Segments
from statewell.memory.store import Store
from statewell.models.mixers.attention import Attention
from statewell.models.mixers.delta import Delta
from statewell.models.mixers.gated_delta import GatedDelta
from statewell.models.mixers.kda import KDA
from statewell.models.mixers.linear import LinearAttention
from statewell.models.mixers.mla import MLA
from statewell.models.mixers.rotary import RotaryAttention
from statewell.models.parts import Linear


class Mixer(Protocol):
    """What a block needs of a mixer, an nn.Module. `o_proj` is its projection back to the stream."""

    o_proj: Linear

    @property
    def spec(self) -> MixerSpec:
        """What this mixer is."""
        ...

    def new_memory(self, store: Store) -> Memory[Any]:
        """This mixer's memory over `store`."""
        ...

    def __call__(self, x: Tensor, memory: Memory[Any], segments: Segments) -> Tensor:
        """x [1, T, D] -> [1, T, D]; the memory has taken the tokens in."""
        ...


_MIXERS: dict[type, Callable[..., Mixer]] = {
    AttentionSpec: Attention,
    RotaryAttentionSpec: RotaryAttention,
    LinearSpec: LinearAttention,
    DeltaSpec: Delta,
    GatedDeltaSpec: GatedDelta,
    KDASpec: KDA,
    MLASpec: MLA,
}


def mixer(spec: MixerSpec, width: int, eps: float) -> Mixer:
    """The mixer `spec` describes, over a stream of `width`; eps: the model's norm eps."""
    return _MIXERS[type(spec)](spec, width, eps)


def registered_mixers() -> tuple[type, ...]:
    """The spec of every mixer, in the order GPT-2 to Kimi K3: what the laws run over."""
    return tuple(_MIXERS)
