"""A preset that reaches as far as a benchmark needs: only its position table grows, which nothing was trained into."""

from __future__ import annotations

from dataclasses import replace

from statewell.architectures import preset
from statewell.config.layers import ModelConfig


def reaching(architecture: str, size: str, tokens: int) -> ModelConfig:
    """The preset, with as many positions as `tokens` where it has fewer."""
    config = preset(architecture, size)
    if config.context is None or config.context >= tokens:
        return config
    return replace(config, positions=tokens, context=tokens)
