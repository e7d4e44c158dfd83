"""A model out of tensors: built without storage, its tensors matched with the file's, then taken over one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from statewell.checkpoints.coverage import Coverage, nowhere_else, resolve
from statewell.checkpoints.layout import ALWAYS_FP32
from statewell.checkpoints.reader import BYTES, TORCH_DTYPES, MappedFiles
from statewell.checkpoints.rules import Entry, Rule, Shape
from statewell.config.layers import ModelConfig
from statewell.errors import CheckpointError
from statewell.formats.listing import Listing
from statewell.models.backbone import LanguageModel
from statewell.plan.weights import total
from statewell.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model as it lies in files. names: the rules' name of every tensor -> the file's. entries: its rules."""

    config: ModelConfig
    tokenizer: Tokenizer | None
    listing: Listing
    names: Mapping[str, str]
    entries: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which of a model's tensors a load is for. full_name: of a tensor in the whole model. elsewhere: why a tensor of
    the whole model is not in this one, or None."""

    full_name: Callable[[str], str] = str
    elsewhere: Callable[[str], str | None] = nowhere_else


def fill(model: LanguageModel, source: Source, dtype: torch.dtype | None, place: Place = Place()) -> Coverage:
    """Give `model`, which was built on meta, its weights.

    dtype: of the weights, None for the stored ones; A_log, dt_bias and correction biases are never narrowed below fp32.
    Returns what was used and what ignored. Raises CheckpointError, naming file, tensor, expected and found.
    """
    wanted = {place.full_name(name): (name, tensor) for name, tensor in model.state_dict().items()}
    try:
        coverage = resolve(source.entries, source.names, wanted, place.elsewhere)
    except CheckpointError as error:
        problem = f" ({source.listing.problems[0]})" if source.listing.problems else ""
        raise CheckpointError(f"{source.listing.path}: {error}{problem}") from None
    files = MappedFiles(source.listing)
    for rule in coverage.rules:
        _check(rule, [tuple(wanted[target][1].shape) for target in rule.targets], source)
    filled: dict[str, Tensor] = {}
    for rule in coverage.rules:
        stored = [files.tensor(source.names[name]) for name in rule.sources]
        for target, pieces in zip(rule.targets, rule.read(stored), strict=True):
            name, described = wanted[target]
            filled[name] = files.settle(pieces, described.shape, _dtype(target, stored[0], dtype))
    for repeat in coverage.repeats:
        one, other = (source.names[name] for name in (repeat.source, repeat.original))
        if not torch.equal(files.tensor(one), files.tensor(other)):
            raise CheckpointError(
                f"{source.listing.tensors[one].path}: {one} differs from {other}, which config.json says it is "
                "(tie_word_embeddings); set that to false to use both."
            )
    model.load_state_dict(filled, assign=True)
    return coverage


def require_plausible(config: ModelConfig, listing: Listing) -> None:
    """Raise CheckpointError where the model has more than twice the numbers that the files hold: told before anything
    is built, so that what is built is bounded by the files."""
    stored = sum(
        math.prod(one.entry.shape) * (2 if one.entry.dtype in BYTES else 1) for one in listing.tensors.values()
    )
    if (needed := total(config)) > 2 * stored:
        raise CheckpointError(
            f"{listing.path}: config.json describes {needed:,} parameters, the files hold {stored:,}; they are not of "
            "one model."
        )


def _dtype(target: str, stored: Tensor, dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is None or target.endswith(("_packed", "_scale")):
        return None
    return torch.promote_types(dtype, torch.float32) if target.rsplit(".", 1)[-1] in ALWAYS_FP32 else dtype


def _check(rule: Rule, ours: list[Shape], source: Source) -> None:
    """Raise CheckpointError for the first tensor whose dtype or shape is not one the rule takes."""
    dtypes = BYTES if rule.packed else TORCH_DTYPES
    for name, shapes in zip(rule.sources, rule.stored_shapes(ours), strict=True):
        stored = source.listing.tensors[source.names[name]]
        entry = stored.entry
        if entry.dtype not in dtypes:
            raise CheckpointError(f"{stored.path}: {entry.name} is {entry.dtype}, expected {' or '.join(dtypes)}.")
        if entry.shape not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            raise CheckpointError(f"{stored.path}: {entry.name} has shape {list(entry.shape)}, expected {expected}.")
