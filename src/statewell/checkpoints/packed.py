"""Where a checkpoint's MXFP4 experts go: kept packed in memory, left on the disk behind a cache, or unpacked.

`place_experts` puts the right kind of experts into a model that was built on meta, before its weights are filled in.
Which tensors hold them, the family's rules say: those whose targets are `w1_packed`, `w1_scale` and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

from statewell.checkpoints.assemble import Place, Source
from statewell.checkpoints.expert_disk import CachedExperts, ExpertCache
from statewell.checkpoints.expert_files import StoredExpert
from statewell.checkpoints.rules import Either, Rule
from statewell.config.layers import LatentMoESpec, MoESpec
from statewell.config.numbers import format_bytes
from statewell.errors import CheckpointError, RequestError, nearest
from statewell.formats.listing import StoredTensor
from statewell.kernels.packed import GROUP
from statewell.models.backbone import LanguageModel
from statewell.models.ffn.experts import DiskExperts, PackedExperts, matrix_shapes
from statewell.models.ffn.moe import LatentMoE, MoE

ExpertKind = Literal["dense", "packed", "disk"]
KINDS = ("dense", "packed", "disk")
DEFAULT_CACHE = 8 * 2**30
PARTS = {"packed": 2, "scale": GROUP}  # inputs per byte


@dataclass(frozen=True)
class ExpertPlacement:
    """kind: packed keeps what the file has packed; dense unpacks it, at 2 bytes a weight or more; disk reads it when it
    is chosen, into a cache of at most `cache_bytes`."""

    kind: ExpertKind = "packed"
    cache_bytes: int = DEFAULT_CACHE


def placement(kind: str, cache_bytes: int | None) -> ExpertPlacement:
    """The placement asked for by name. Raises RequestError for an unknown one, or a cache where nothing is cached."""
    if kind not in KINDS:
        raise RequestError(f"experts cannot be '{kind}'; {nearest(kind, KINDS)}")
    if cache_bytes is not None and kind != "disk":
        raise RequestError(
            f"an expert cache of {format_bytes(cache_bytes)} came with {kind} experts, which need none; leave it out "
            "or keep the experts on disk."
        )
    return ExpertPlacement(kind, DEFAULT_CACHE if cache_bytes is None else cache_bytes)  # type: ignore[arg-type]


def place_experts(model: LanguageModel, source: Source, place: Place, wanted: ExpertPlacement) -> Place:
    """Exchange the experts of every layer whose file has them packed; `place` as the filling needs it afterwards.

    Raises CheckpointError for experts on a disk that are not packed or have another shape, LimitError for a cache that
    cannot hold one token's.
    """
    layers, packed = list(_layers(model, place)), _PackedNames(source)
    if wanted.kind == "packed":
        for layer in layers:
            if packed.holds(layer):
                with torch.device("meta"):
                    layer.ffn.experts = PackedExperts(layer.spec, layer.inner)
    if wanted.kind != "disk" or not layers:
        return place
    stored = [packed.experts(layer) for layer in layers]
    cache = ExpertCache(wanted.cache_bytes, max(layer.spec.top_k for layer in layers), stored)
    for number, layer in enumerate(layers):
        layer.ffn.experts = DiskExperts(layer.spec, CachedExperts(cache, number))
    on_disk = tuple(f"{layer.path}." for layer in layers)

    def elsewhere(target: str) -> str | None:
        return "it stays on the disk" if target.startswith(on_disk) else place.elsewhere(target)

    return replace(place, elsewhere=elsewhere)


def expert_cache(model: LanguageModel) -> ExpertCache | None:
    """The cache of a model whose experts are on the disk; None for any other."""
    for module in model.modules():
        if isinstance(module, DiskExperts) and isinstance(module.source, CachedExperts):
            return module.source.cache
    return None


@dataclass(frozen=True)
class _Layer:
    """A layer with experts. path: of them in the whole model. inner: the width they work at."""

    path: str
    ffn: MoE | LatentMoE
    spec: MoESpec | LatentMoESpec

    @property
    def inner(self) -> int:
        return self.spec.latent if isinstance(self.spec, LatentMoESpec) else self.ffn.router.weight.shape[1]


def _layers(model: LanguageModel, place: Place) -> Iterator[_Layer]:
    for index, (block, layer) in enumerate(zip(model.layers, model.config.layers, strict=True)):
        if isinstance(block.ffn, MoE | LatentMoE) and isinstance(layer.ffn, MoESpec | LatentMoESpec):
            path = place.full_name(f"blocks.{index}.ffn.experts.w1").removesuffix(".w1")
            yield _Layer(path, block.ffn, layer.ffn)


class _PackedNames:
    """The tensors of packed experts in a source, found by its rules."""

    def __init__(self, source: Source) -> None:
        self._source = source
        rules = (rule for entry in source.entries if isinstance(entry, Either) for way in entry.options for rule in way)
        self._rules: dict[str, Rule] = {target: rule for rule in rules for target in rule.targets if rule.packed}

    def holds(self, layer: _Layer) -> bool:
        """Whether the file has this layer's experts packed."""
        rule = self._rules.get(f"{layer.path}.w1_packed")
        return rule is not None and rule.sources[0] in self._source.names

    def experts(self, layer: _Layer) -> list[StoredExpert]:
        """Where each of the layer's experts lies."""
        if not self.holds(layer):
            raise CheckpointError(
                f"{self._source.listing.path}: {layer.path} is not in MXFP4, and only packed experts stay on the disk; "
                "load them dense."
            )
        columns: list[list[StoredTensor]] = []
        for name, (out, width) in matrix_shapes(layer.spec, layer.inner).items():
            for part, per_byte in PARTS.items():
                sources = self._rules[f"{layer.path}.{name}_{part}"].sources
                columns.append([self._stored(source, (out, width // per_byte)) for source in sources])
        return list(zip(*columns, strict=True))

    def _stored(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        listing = self._source.listing
        if name not in self._source.names:
            raise CheckpointError(f"{listing.path}: 1 of the model's tensors not in the file, {name}.")
        stored = listing.tensors[self._source.names[name]]
        if (stored.entry.dtype, stored.entry.shape) != ("U8", shape):
            raise CheckpointError(
                f"{stored.path}: {stored.entry.name} is {stored.entry.dtype} {stored.entry.shape}, U8 {shape} is "
                "expected; its config.json is another model's."
            )
        return stored
