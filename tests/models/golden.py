"""The goldens of four released layouts, loaded as any checkpoint is."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

import statewell as sw
from statewell.checkpoints.families import LAYOUTS
from statewell.checkpoints.rules import Either, Ignore, Repeat, Rule
from statewell.formats.families import describe
from statewell.models.backbone import LanguageModel

GOLDEN = Path(__file__).parent.parent / "golden"


def outputs(folder: str, name: str = "outputs") -> dict[str, Tensor]:
    """A golden's tensors, keyed `case/name`."""
    return load_file(GOLDEN / folder / f"{name}.safetensors")


def golden_model(folder: str, dtype: torch.dtype = torch.float64, recompute: bool = False) -> LanguageModel:
    """A golden's model in `dtype`."""
    loaded = sw.load(GOLDEN / folder, dtype=dtype)
    if not recompute:
        return loaded
    model = LanguageModel(loaded.config, recompute)
    model.load_state_dict(loaded.state_dict(), assign=True)
    return model


def in_our_names(folder: str, released: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that have the names and shapes of a golden's weights, such as gradients, under ours. None is left out."""
    description = describe(json.loads((GOLDEN / folder / "config.json").read_text()))
    layout = LAYOUTS[description.family.name]
    named = {
        name.removeprefix("transformer.").removeprefix("language_model."): value for name, value in released.items()
    }
    ours: dict[str, Tensor] = {}
    used: set[str] = set()
    for entry in layout.rules(description.config):
        rules: tuple[Rule, ...] = () if isinstance(entry, Ignore | Repeat) else (entry,)  # type: ignore[assignment]
        for rule in entry.options[0] if isinstance(entry, Either) else rules:
            if all(source in named for source in rule.sources):
                used.update(rule.sources)
                values = rule.read([named[source] for source in rule.sources])
                for target, value in zip(rule.targets, values, strict=True):
                    ours[target] = value if isinstance(value, Tensor) else torch.stack(list(value))
    assert used == named.keys()
    return ours
