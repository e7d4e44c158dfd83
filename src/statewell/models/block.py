"""One layer: read, norm, mix, add; read, norm, FFN, add."""

from __future__ import annotations

from typing import Any

from torch import nn

from statewell.config.layers import ModelConfig
from statewell.memory.base import Memory
from statewell.memory.segments import Segments
from statewell.models.ffn import ffn
from statewell.models.mixers import Mixer, mixer
from statewell.models.parts import norm
from statewell.models.stream import Stream, closes_group, site


class Block(nn.Module):
    """(stream, memory, segments) -> stream: a value in, a value out."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        layer, width, eps = config.layers[index], config.width, config.norm.eps
        self.mixer_site = site(config.stream, width, eps, closes=closes_group(config.stream, 2 * index))
        self.mixer_norm = norm(config.norm, width)
        self.mixer: Mixer = mixer(layer.mixer, width, eps)
        self.ffn_site = site(config.stream, width, eps, closes=closes_group(config.stream, 2 * index + 1))
        self.ffn_norm = norm(config.norm, width)
        self.ffn: nn.Module = ffn(layer.ffn, width, eps)

    def forward(self, stream: Any, memory: Memory[Any], segments: Segments) -> Stream:
        mixed = self.mixer(self.mixer_norm(stream.read(self.mixer_site)), memory, segments)
        stream = stream.add(self.mixer_site, mixed)
        return stream.add(self.ffn_site, self.ffn(self.ffn_norm(stream.read(self.ffn_site))))
