"""The six architectures, in order, and every name a model can be asked for by.

One file each: its story, its equations, its presets. Adding one means adding a file and its line in `_MODULES`.
"""

from __future__ import annotations

from statewell.architectures import deltanet, gated_deltanet, gpt2, kimi_k3, kimi_linear, linear_attention
from statewell.config.layers import ModelConfig
from statewell.errors import RequestError, did_you_mean, nearest

_MODULES = {
    "gpt2": gpt2,
    "linear_attention": linear_attention,
    "deltanet": deltanet,
    "gated_deltanet": gated_deltanet,
    "kimi_linear": kimi_linear,
    "kimi_k3": kimi_k3,
}

ARCHITECTURES = tuple(_MODULES)
SIZES = ("nano", "tiny", "small")
RELEASED: dict[str, ModelConfig] = {
    name: config for module in _MODULES.values() for name, config in module.RELEASED.items()
}


def preset(architecture: str, size: str) -> ModelConfig:
    """The config of one architecture at one size; `-` and `_` are the same. Raises RequestError for an unknown name."""
    key = architecture.replace("-", "_")
    if key not in _MODULES:
        raise RequestError(f"'{architecture}' is not an architecture; {nearest(key, ARCHITECTURES)}")
    if size not in SIZES:
        raise RequestError(f"'{size}' is not a size; {nearest(size, SIZES)}")
    return _MODULES[key].SIZES[size]


def resolve(name: str) -> ModelConfig:
    """The config of a released preset (`gpt2`, `kimi-k3`) or of `ARCH:SIZE`. Raises RequestError for an unknown
    name."""
    if ":" in name:
        architecture, size = name.split(":", 1)
        return preset(architecture, size)
    key = name.replace("_", "-")
    if key not in RELEASED:
        known = [*RELEASED, *(f"{architecture}:{size}" for architecture in ARCHITECTURES for size in SIZES)]
        raise RequestError(
            f"'{name}' is not a model; {did_you_mean(name, known)}Valid: {', '.join(RELEASED)}, or ARCH:SIZE "
            f"of {', '.join(ARCHITECTURES)} and {', '.join(SIZES)}."
        )
    return RELEASED[key]
