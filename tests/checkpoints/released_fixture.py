"""Models written in a released layout by the rules alone, so that a test can change what the file says."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from statewell.checkpoints.coverage import writing_rules
from statewell.checkpoints.families import LAYOUTS
from statewell.config.layers import ModelConfig
from statewell.formats.families import released_layout
from statewell.models.backbone import LanguageModel


def stored(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """`tensors`, by our names, as the released layout of `config` holds them."""
    family, _ = released_layout(config)
    written: dict[str, Tensor] = {}
    for rule in writing_rules(LAYOUTS[family.name].rules(config), tensors):
        values = rule.write([tensors[target] for target in rule.targets])
        written |= dict(zip(rule.sources, values, strict=True))
    return {name: value.clone().contiguous() for name, value in written.items()}


def save(folder: Path, config: ModelConfig, tensors: dict[str, Tensor], **fields: object) -> Path:
    """A folder with `tensors` and the config.json of `config`, in which `fields` are changed."""
    _, document = released_layout(config)
    (folder / "config.json").write_text(json.dumps({**document, **fields}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def randomised(model: LanguageModel, seed: int = 0) -> LanguageModel:
    """The model in float64 with every tensor drawn at random, biases and norms included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.double().state_dict().values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return model
