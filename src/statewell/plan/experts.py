"""Bytes of routed experts by where they are: as numbers in memory, in MXFP4 in memory, or on a disk behind a cache."""

from __future__ import annotations

from dataclasses import dataclass

from statewell.config.layers import LatentMoESpec, ModelConfig, MoESpec
from statewell.errors import ConfigError, nearest
from statewell.plan.weights import MXFP4_GROUP, WEIGHT_BYTES, weights

PLACES = ("dense", "packed", "disk")
_UNPACKED = "bf16"  # what unpacked experts are held in; exact for every MXFP4 number


@dataclass(frozen=True, kw_only=True)
class LayerExperts:
    """The routed experts of one layer: how many, how many a token uses, and the bytes of one in MXFP4."""

    layer: int
    count: int
    at_once: int
    packed_bytes: int


def experts_at(config: ModelConfig) -> tuple[LayerExperts, ...]:
    """The layers that have experts."""
    found: list[LayerExperts] = []
    for index, layer in enumerate(config.layers):
        spec = layer.ffn
        if isinstance(spec, MoESpec | LatentMoESpec):
            inner = spec.latent if isinstance(spec, LatentMoESpec) else config.width
            size = 3 * spec.width * inner * (MXFP4_GROUP // 2 + 1) // MXFP4_GROUP
            found.append(LayerExperts(layer=index, count=spec.experts, at_once=spec.top_k, packed_bytes=size))
    return tuple(found)


def packed_bytes(config: ModelConfig) -> int:
    """Of all routed experts in MXFP4."""
    return sum(layer.count * layer.packed_bytes for layer in experts_at(config))


def cached_bytes(config: ModelConfig, capacity: int) -> int:
    """What a cache of at most `capacity` bytes takes: whole experts, no more than there are."""
    layers = experts_at(config)
    if not layers:
        return 0
    size = layers[0].packed_bytes
    return min(capacity // size, sum(layer.count for layer in layers)) * size


def held_bytes(config: ModelConfig, experts: str, capacity: int = 0) -> int:
    """Bytes of a model's weights in memory, stored as `config.storage` says, its routed experts in `experts` (dense,
    packed or disk; `capacity` is the disk cache's)."""
    if experts not in PLACES:
        raise ConfigError(f"experts cannot be '{experts}'; {nearest(experts, PLACES)}")
    storage, size = config.storage, 0
    routed = 0
    for weight in weights(config):
        if ".experts." in weight.name:
            routed += weight.count * WEIGHT_BYTES[_UNPACKED if storage.experts == "mxfp4" else storage.dtype]
        else:
            kept = not {*weight.name.split(".")}.isdisjoint(storage.fp32)
            size += weight.count * WEIGHT_BYTES["fp32" if kept else storage.dtype]
    placed = {"dense": routed, "packed": packed_bytes(config), "disk": cached_bytes(config, capacity)}
    return int(size + placed[experts])
