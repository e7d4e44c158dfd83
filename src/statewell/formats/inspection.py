"""What lies at a path: a checkpoint, a model saved here, a run, or a snapshot, told from headers and configs alone."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import cast

from statewell.config.layers import ModelConfig
from statewell.config.load import Json, model_from_json
from statewell.errors import CheckpointError, ConfigError
from statewell.formats.families import CONFIG, describe
from statewell.formats.listing import INDEX, SINGLE, Listing, open_listing
from statewell.formats.safetensors import Header
from statewell.formats.strict_json import collection_paused, read_json
from statewell.formats.tensor_entry import DTYPE_BITS, TensorEntry

_SAVED, _SNAPSHOT = "statewell", "statewell-snapshot"
_LONGEST_CONFIG = 16 * 2**20
_PACKED, _SCALE = ".weight_packed", ".weight_scale"
# GPT-2's causal masks, which the released files carry; `c_attn.bias` ends alike and is a parameter
_MASK = re.compile(r"(?:transformer\.)?h\.[0-9]+\.attn\.(?:masked_)?bias")
_MASK_ENDS = ("attn.bias", "attn.masked_bias")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.([0-9]{1,6})\.")


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a path holds.

    kind: checkpoint, model (saved here), run or snapshot. family: of its config.json, None without one that is known.
    layers: of the config, else those that tensors are numbered by; None without any. parameters: packed 4-bit weights
    count one by one; their scales, GPT-2's masks and a snapshot's tensors count none. bytes: of the tensors.
    unread: config fields that change nothing here. tokens: of each row of a snapshot.
    """

    kind: str
    family: str | None
    name: str | None
    layers: int | None
    tensors: int
    parameters: int
    dtypes: dict[str, int]
    bytes: int
    files: tuple[Path, ...]
    unread: tuple[str, ...]
    tokens: tuple[int, ...] | None
    problems: tuple[str, ...]


def inspect(path: Path) -> Inspection:
    """What `path` (a folder, a safetensors file, an index, a snapshot) holds. Raises CheckpointError when it holds
    nothing of the kind; what is merely wrong is in `problems`."""
    with collection_paused():
        return _inspect(path)


def _inspect(path: Path) -> Inspection:
    listing = open_listing(path)
    whole = path.is_dir() or path.name in (SINGLE, INDEX)
    counts = _Counts(listing.headers)
    snapshot = _snapshot(listing)
    # one shard of several is not the model that the folder's config describes
    config = _config(path if path.is_dir() else path.parent) if whole and snapshot is None else _Config()
    layers = len(config.model.layers) if config.model else _numbered_layers(listing)
    return Inspection(
        kind="snapshot" if snapshot is not None else config.kind,
        family=config.family,
        name=config.model.name if config.model else None,
        layers=layers,
        tensors=counts.tensors,
        parameters=0 if snapshot is not None else counts.parameters,
        dtypes=counts.dtypes,
        bytes=counts.bytes,
        files=listing.files,
        unread=config.unread,
        tokens=snapshot,
        problems=(*config.problems, *listing.problems),
    )


class _Counts:
    """Sums over all tensors, by kinds of tensor: half a million names have a few dozen dtypes and shapes."""

    def __init__(self, headers: Iterable[Header]) -> None:
        kinds: Counter[tuple[str, tuple[int, ...]]] = Counter()
        uncounted = 0
        for header in headers:
            kinds.update(map(itemgetter(1, 2), header.entries.values()))
            uncounted += _surplus(header.entries)
        sizes = [(dtype, math.prod(shape), count) for (dtype, shape), count in kinds.items()]
        self.tensors = kinds.total()
        self.bytes = sum(size * DTYPE_BITS[dtype] // 8 * count for dtype, size, count in sizes)
        self.parameters = sum(size * count for _, size, count in sizes) - uncounted
        dtypes: Counter[str] = Counter()
        for dtype, size, count in sizes:
            dtypes[dtype] += size * DTYPE_BITS[dtype] // 8 * count
        self.dtypes = dict(dtypes.most_common())


def _surplus(entries: Mapping[str, TensorEntry]) -> int:
    """Elements of a file that are no parameters, less the parameters that two to an element hide."""
    packed = [name for name in entries if name.endswith(_PACKED)]
    scales = filter(None, map(entries.get, [name[: -len(_PACKED)] + _SCALE for name in packed]))
    masks = filter(_MASK.fullmatch, [name for name in entries if name.endswith(_MASK_ENDS)])
    return (
        _elements(scales)
        + _elements(map(entries.__getitem__, masks))
        - _elements(map(entries.__getitem__, packed), "U8")
    )


def _elements(tensors: Iterable[TensorEntry], dtype: str | None = None) -> int:
    """Of all tensors, or of those with `dtype`; by kinds, as they are few."""
    kinds = Counter(map(itemgetter(1, 2), tensors))
    return sum(math.prod(shape) * count for (kind, shape), count in kinds.items() if dtype in (None, kind))


def _numbered_layers(listing: Listing) -> int | None:
    numbers = {
        int(found[1]) for header in listing.headers for found in map(_LAYER.search, header.entries) if found is not None
    }
    return len(numbers) or None


def _snapshot(listing: Listing) -> tuple[int, ...] | None:
    """The rows' lengths where the listing is a snapshot, which memory/snapshot.py writes and checks."""
    if len(listing.headers) != 1 or listing.headers[0].metadata.get("format") != _SNAPSHOT:
        return None
    return tuple(int(text) for text in re.findall(r"[0-9]{1,18}", listing.headers[0].metadata.get("lengths", "")))


@dataclass(frozen=True, kw_only=True)
class _Config:
    kind: str = "checkpoint"
    family: str | None = None
    model: ModelConfig | None = None
    unread: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def _config(folder: Path) -> _Config:
    """What the folder's config.json says; a checkpoint's files without one are listed all the same."""
    path = folder / CONFIG
    if not path.is_file():
        return _Config(problems=(f"{folder} holds no {CONFIG}; its family is not known.",))
    try:
        document = read_json(path, _LONGEST_CONFIG)
        if not isinstance(document, dict):
            raise CheckpointError(f"{path} is a {type(document).__name__}; an object is expected.")
        fields = cast(dict[str, Json], document)
        if fields.get("format") == _SAVED:
            kind = "run" if (folder / "train.json").is_file() else "model"
            return _Config(kind=kind, family=_SAVED, model=model_from_json(fields.get("model")))
        described = describe(fields, str(path))
    except (CheckpointError, ConfigError) as error:
        return _Config(problems=(str(error),))
    return _Config(family=described.family.name, model=described.config, unread=described.unread)
