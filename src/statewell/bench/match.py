"""Which models are compared, and that the comparison is fair: the same number of parameters within 3%.

By default the presets as they are, which agree on active parameters without embeddings and head.
`match_total` brings total parameters together instead, by the widths of the feed-forward networks alone.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from statewell import architectures
from statewell.bench.words import listing, title
from statewell.config.layers import FFNSpec, LayerSpec, MLPSpec, ModelConfig
from statewell.errors import ConfigError, RequestError, nearest
from statewell.plan import weights

TOLERANCE = 0.03
MATCHES = ("active", "total")
BISECTIONS = 50


@dataclass(frozen=True, kw_only=True)
class Matched:
    """The models to compare, in the order of the registry, and one sentence for each that was changed."""

    configs: tuple[ModelConfig, ...]
    changes: tuple[str, ...]


def choose(archs: Sequence[str], size: str, match: str) -> Matched:
    """The models `archs` (none: all of them) at `size`, matched on "active" or "total" parameters.

    Errors: RequestError for an unknown architecture, size or match; ConfigError when they cannot agree within
    3%.
    """
    if match not in MATCHES:
        raise RequestError(f"'{match}' is nothing to match on; {nearest(match, MATCHES)}")
    configs = [architectures.preset(arch, size) for arch in archs or architectures.ARCHITECTURES]
    once = {config.architecture: config for config in configs}
    ordered = [once[arch] for arch in architectures.ARCHITECTURES if arch in once]
    if match == "total":
        return match_total(ordered)
    require_agreement(ordered, weights.compared, "active parameters without embeddings and head")
    return Matched(configs=tuple(ordered), changes=())


def require_agreement(configs: Sequence[ModelConfig], count: Callable[[ModelConfig], int], what: str) -> None:
    """Raise ConfigError unless the largest `count` is at most 3% above the smallest."""
    counts = {config.name: count(config) for config in configs}
    least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    if counts[most] > (1 + TOLERANCE) * counts[least]:
        apart = 100 * (counts[most] / counts[least] - 1)
        raise ConfigError(
            f"{most} has {counts[most]:,} {what} and {least} {counts[least]:,}, {apart:.1f}% apart; a comparison "
            f"allows {100 * TOLERANCE:g}%: change the presets, or leave one out with --archs."
        )


def match_total(configs: Sequence[ModelConfig]) -> Matched:
    """Bring every model to the total parameters of the first (GPT-2 where it takes part), by FFN widths only.

    Errors: ConfigError when a model's other parts alone are too large, or its widths too coarse.
    """
    goal = weights.total(configs[0])
    matched = [configs[0], *(_resized(config, goal) for config in configs[1:])]
    require_agreement(matched, weights.total, "total parameters")
    changes = [_change(before, after) for before, after in zip(configs, matched, strict=True) if before != after]
    return Matched(configs=tuple(matched), changes=tuple(changes))


def _resized(config: ModelConfig, goal: int) -> ModelConfig:
    """`config` with all FFN widths multiplied by one factor, so that its total is as near to `goal` as widths
    allow.
    """
    if abs(weights.total(config) / goal - 1) <= TOLERANCE / 3:
        return config
    low, high = 0.0, 1.0
    while weights.total(_widened(config, high)) < goal:
        high *= 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if weights.total(_widened(config, middle)) < goal:
            low = middle
        else:
            high = middle
    return min(
        (_widened(config, factor) for factor in (low, high)),
        key=lambda tried: abs(weights.total(tried) - goal),
    )


def _widened(config: ModelConfig, factor: float) -> ModelConfig:
    return replace(
        config,
        layers=tuple(LayerSpec(mixer=layer.mixer, ffn=_scaled(layer.ffn, factor)) for layer in config.layers),
    )


def _scaled(ffn: FFNSpec, factor: float) -> FFNSpec:
    width = max(1, round(ffn.width * factor))
    if isinstance(ffn, MLPSpec):
        return replace(ffn, width=width)
    return replace(ffn, width=width, shared_width=max(1, round(ffn.shared_width * factor)))


def _change(before: ModelConfig, after: ModelConfig) -> str:
    """Name the widths that changed, each kind of layer once."""
    kinds = [
        f"{old.ffn.label} {_widths(old.ffn)} to {_widths(new.ffn)}"
        for old, new in zip(before.layers, after.layers, strict=True)
        if old.ffn != new.ffn
    ]
    distinct = [kind for kind, _ in groupby(sorted(kinds))]
    totals = f"{weights.total(before):,} to {weights.total(after):,} parameters"
    return f"{title(before.architecture)}: {listing(distinct)} ({totals})"


def _widths(ffn: FFNSpec) -> str:
    return f"{ffn.width}" if isinstance(ffn, MLPSpec) else f"{ffn.width}+{ffn.shared_width} shared"
