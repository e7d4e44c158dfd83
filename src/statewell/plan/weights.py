"""Every weight of a model by name and shape, and from that: parameters in total, active, compared; bytes as stored.

The names are those of `models.build(config).state_dict()`; a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from statewell.config.layers import AttnResSpec, LayerNormSpec, LayerSpec, ModelConfig
from statewell.config.memory import DTYPE_BYTES
from statewell.errors import ConfigError, nearest
from statewell.plan.ffn_weights import ffn
from statewell.plan.mixer_weights import mixer
from statewell.plan.tensors import Weight

__all__ = ["MXFP4_GROUP", "WEIGHT_BYTES", "Weight", "active", "compared", "stored_bytes", "total", "weights"]

MXFP4_GROUP = 32  # weights that share one scale byte: 4 bits each + 8/32 = 4.25 bits
WEIGHT_BYTES = {**DTYPE_BYTES, "mxfp4": 0.5 + 1 / MXFP4_GROUP}


def weights(config: ModelConfig) -> Iterator[Weight]:
    """All tensors of the model, in the order of the forward pass."""
    D = config.width
    yield Weight("embedding.weight", (config.vocab, D))
    if config.positions is not None:
        yield Weight("positions.weight", (config.positions, D))
    for index, layer in enumerate(config.layers):
        yield from _layer(f"blocks.{index}", layer, config)
    if isinstance(config.stream, AttnResSpec):
        yield from _site("output_site", D)
    yield from _norm("norm", config, D)
    if not config.tied:
        yield Weight("head.weight", (config.vocab, D))


def total(config: ModelConfig) -> int:
    """All parameters, the router's correction bias and K3's unused first AttnRes pair included."""
    return sum(weight.count for weight in weights(config))


def active(config: ModelConfig) -> int:
    """Parameters a token uses: total - input embedding (unless tied) - position table - experts not chosen."""
    return sum(weight.active for weight in weights(config) if not _is_lookup(weight, config))


def compared(config: ModelConfig) -> int:
    """Active parameters without embeddings and head: what `compare` matches."""
    return sum(
        weight.active for weight in weights(config) if weight.name.startswith(("blocks.", "norm.", "output_site."))
    )


def stored_bytes(config: ModelConfig, dtype: str | None = None) -> int:
    """Bytes of all weights: as released (`config.storage`), or every one in `dtype`."""
    if dtype is not None and dtype not in WEIGHT_BYTES:
        raise ConfigError(f"'{dtype}' is not a weights dtype; {nearest(dtype, WEIGHT_BYTES)}")
    storage = config.storage
    size = 0.0
    for weight in weights(config):
        entries, stored = weight.count, dtype
        if stored is None:
            last = weight.name.split(".")[-1]
            owner = weight.name.split(".")[-2]
            if ".experts." in weight.name and storage.experts is not None:
                stored = storage.experts
            else:
                stored = "fp32" if last in storage.fp32 or owner in storage.fp32 else storage.dtype
            if last == "A_log" and storage.a_log_entries is not None:
                entries = storage.a_log_entries
        size += entries * WEIGHT_BYTES[stored]
    return math.ceil(size)


def _is_lookup(weight: Weight, config: ModelConfig) -> bool:
    return weight.name == "positions.weight" or (weight.name == "embedding.weight" and not config.tied)


def _layer(path: str, layer: LayerSpec, config: ModelConfig) -> Iterator[Weight]:
    D = config.width
    if isinstance(config.stream, AttnResSpec):
        yield from _site(f"{path}.mixer_site", D)
    yield from _norm(f"{path}.mixer_norm", config, D)
    for weight in mixer(layer.mixer, D):
        yield Weight(f"{path}.mixer.{weight.name}", weight.shape, weight.used)
    if isinstance(config.stream, AttnResSpec):
        yield from _site(f"{path}.ffn_site", D)
    yield from _norm(f"{path}.ffn_norm", config, D)
    for weight in ffn(layer.ffn, D):
        yield Weight(f"{path}.ffn.{weight.name}", weight.shape, weight.used)


def _norm(path: str, config: ModelConfig, D: int) -> Iterator[Weight]:
    yield Weight(f"{path}.weight", (D,))
    if isinstance(config.norm, LayerNormSpec):
        yield Weight(f"{path}.bias", (D,))


def _site(path: str, D: int) -> Iterator[Weight]:
    yield Weight(f"{path}.norm_weight", (D,))
    yield Weight(f"{path}.query", (D,))
