"""The front door to trained weights: a folder of ours, or one of the nano models that ship inside the package."""

from __future__ import annotations

from pathlib import Path

import torch

from statewell import architectures
from statewell.checkpoints import native
from statewell.errors import RequestError
from statewell.models.backbone import LanguageModel

SHIPPED = Path(__file__).resolve().parent.parent / "shipped"


def load(model: str | Path, dtype: torch.dtype | None = None) -> LanguageModel:
    """The trained model MODEL names: a run or saved folder, or ARCH:nano.

    dtype: of the weights; None keeps the stored one (activations are at least fp32 on a CPU either way). Raises
    RequestError
    for a name without weights, CheckpointError for a folder that does not load.
    """
    loaded = native.load_model(_folder(model))
    return loaded if dtype is None else loaded.to(dtype)


def _folder(model: str | Path) -> Path:
    path = Path(model)
    # a folder that only shares a preset's name does not hide the preset
    if isinstance(model, Path) or "/" in model or (path / native.CONFIG).is_file():
        if not path.is_dir():
            raise RequestError(f"{path} is not a folder; give the folder of a saved model or run.")
        return path
    config = architectures.resolve(model)
    folder = SHIPPED / config.name.replace(":", "-")
    if not folder.is_dir():
        raise RequestError(
            f"'{model}' has no trained weights here: ARCH:nano ships trained, and a run folder loads. "
            f"Train one with: statewell train --arch {config.architecture} --size tiny"
        )
    return folder
