"""Some layers of a model: `A:B`, as if the others were not there."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from statewell.checkpoints.assemble import Place
from statewell.config.layers import AttnResSpec, ModelConfig
from statewell.errors import RequestError

_BLOCK = re.compile(r"blocks\.(\d+)\.")


@dataclass(frozen=True)
class LayerSlice:
    """Layers first to last - 1, counted from 0."""

    first: int
    last: int

    def config(self, config: ModelConfig) -> ModelConfig:
        """The model of these layers alone, embedding, last norm and head kept."""
        return replace(config, layers=config.layers[self.first : self.last])

    def place(self) -> Place:
        """Where the slice's tensors are in the whole model."""
        return Place(full_name=self._full_name, elsewhere=self._elsewhere)

    def _full_name(self, name: str) -> str:
        return _BLOCK.sub(lambda found: f"blocks.{int(found[1]) + self.first}.", name)

    def _elsewhere(self, target: str) -> str | None:
        found = _BLOCK.match(target)
        if found is None or self.first <= int(found[1]) < self.last:
            return None
        return f"layer {found[1]} is outside {self.first}:{self.last}"


def parse_layers(text: str, config: ModelConfig) -> LayerSlice:
    """The slice `A:B` (either may be left out) of a model. Raises RequestError for one that is empty, past the model,
    or starts inside a group of attention residuals."""
    depth = len(config.layers)
    found = re.fullmatch(r"(\d*):(\d*)", text.strip())
    if found is None:
        raise RequestError(f"'{text}' is no range of layers; write A:B, such as 0:4.")
    first, last = int(found[1] or 0), int(found[2] or depth)
    if not first < last <= depth:
        raise RequestError(f"layers {text} are none of {config.name}'s, which has 0:{depth}.")
    group = config.stream.sublayers if isinstance(config.stream, AttnResSpec) else 1
    if 2 * first % group:
        raise RequestError(
            f"layers {text} start inside a group of attention residuals; start where one begins, at layer "
            f"{first - first % (group // 2)}."
        )
    return LayerSlice(first, last)
