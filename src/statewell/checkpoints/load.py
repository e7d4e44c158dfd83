"""The front door to trained weights: a folder of ours, a run, a model that ships, a released checkpoint.

What a folder is, its config.json says, never its name.
"""

from __future__ import annotations

from pathlib import Path

import torch

from statewell.checkpoints import native, released
from statewell.checkpoints.assemble import Place, Source, fill, require_plausible
from statewell.checkpoints.packed import place_experts, placement
from statewell.checkpoints.search import Found, find
from statewell.checkpoints.slices import parse_layers
from statewell.errors import CheckpointError
from statewell.formats.families import CONFIG, describe, read_object
from statewell.formats.family import TokenIds
from statewell.models.backbone import LanguageModel


def load(
    model: str | Path,
    dtype: torch.dtype | None = None,
    experts: str = "packed",
    expert_cache: int | None = None,
    layers: str | None = None,
) -> LanguageModel:
    """The trained model MODEL names: a path (run, saved model, released checkpoint), a released preset, or ARCH:nano.

    dtype: of the weights; None keeps the stored one (activations are at least fp32 on a CPU either way). A_log, dt_bias
    and correction biases are never narrowed below fp32. Weights stay mapped where they have the dtype.
    experts: `packed` keeps MXFP4 experts in memory as they are, `dense` unpacks them, `disk` reads them when they are
    chosen, into a cache of at most `expert_cache` bytes (None: 8 GiB). Experts that are not packed in the file are
    dense in memory, and refused with `disk`.
    layers: `A:B`, only these layers, between the embedding and the head.
    Raises RequestError for a name without weights or an argument that is none of these, CheckpointError for a folder
    that does not load.
    """
    wanted = placement(experts, expert_cache)
    found = find(model)
    source = _open(found, partly=layers is not None)
    config, place = source.config, Place()
    if layers is not None:
        part = parse_layers(layers, config)
        config, place = part.config(config), part.place()
    require_plausible(config, source.listing)
    with torch.device("meta"):
        loaded = LanguageModel(config)
    place = place_experts(loaded, source, place, wanted)
    fill(loaded, source, dtype, place)
    loaded.tokenizer = source.tokenizer
    return loaded


def token_ids(model: str | Path) -> TokenIds | None:
    """The ids that a released checkpoint's config.json gives a meaning to; None for a model of ours."""
    folder = find(model).folder
    document = read_object(folder / CONFIG)
    return None if native.is_ours(document) else describe(document, str(folder / CONFIG)).token_ids


def _open(found: Found, partly: bool) -> Source:
    folder = found.folder
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder} holds no {CONFIG}; give the folder of a saved model, a run or a checkpoint.")
    document = read_object(folder / CONFIG)
    if native.is_ours(document):
        return native.open_source(folder)
    return released.open_source(folder, document, found.preset, partly)
