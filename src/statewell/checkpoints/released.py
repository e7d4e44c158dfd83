"""Released checkpoints: a folder with a family's config.json and its safetensors, in one file or in shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from statewell.checkpoints.assemble import Source
from statewell.checkpoints.families import LAYOUTS
from statewell.config.layers import ModelConfig
from statewell.config.load import Json
from statewell.errors import CheckpointError
from statewell.formats.families import CONFIG, Description, describe
from statewell.formats.listing import open_listing
from statewell.text import load_tokenizer


def open_source(folder: Path, document: Mapping[str, Json], preset: str | None = None, partly: bool = False) -> Source:
    """The checkpoint in `folder`, whose config.json is `document`, its weights unread.

    preset: the released preset it was asked for as, which it has to be. partly: shards that this load does not need may
    be missing. Raises CheckpointError for a config or a file that is not whole, and for weights that are pickles.
    """
    described = describe(document, str(folder / CONFIG))
    if preset not in (None, described.preset):
        raise CheckpointError(
            f"{folder} was taken for {preset}, and its {CONFIG} describes another model; move it away or give the path "
            "of the right one."
        )
    listing = open_listing(folder)
    if not partly:
        listing.require_whole()
    layout = LAYOUTS[described.family.name]
    return Source(
        config=_named(described, folder),
        tokenizer=load_tokenizer(folder),
        listing=listing,
        names=layout.plain_names(listing.tensors),
        entries=layout.rules(described.config),
    )


def _named(described: Description, folder: Path) -> ModelConfig:
    """The config, named after its folder unless it is a released preset."""
    return replace(described.config, name=described.preset or folder.resolve().name)
