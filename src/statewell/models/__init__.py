"""One backbone for all six architectures; a layer's spec says which mixer, FFN and stream it is made of.

Start at `backbone.LanguageModel`, then `block.Block`, `stream`, and a mixer.
"""

from __future__ import annotations

import torch

from statewell import architectures
from statewell.config.layers import ModelConfig
from statewell.models.backbone import LanguageModel
from statewell.models.init import initialise
from statewell.text.tokenizer import ByteTokenizer

# 1-D parameters never decay either; these are matrices by shape only
_UNDECAYED = ("q_conv", "k_conv", "v_conv")


def build(
    model: str | ModelConfig, seed: int = 0, recompute: bool = False, dtype: torch.dtype | None = None
) -> LanguageModel:
    """A model with random weights drawn from `seed`.

    model: a preset's name or a config. recompute: run blocks again in backward instead of keeping their activations.
    dtype: of the weights, fp32 unless given. Raises RequestError for an unknown name.
    """
    config = architectures.resolve(model) if isinstance(model, str) else model
    built = LanguageModel(config, recompute)
    initialise(built, seed)
    tokenizer = ByteTokenizer()
    built.tokenizer = tokenizer if config.vocab == tokenizer.vocab else None
    return built if dtype is None else built.to(dtype)


def no_decay(model: LanguageModel) -> set[str]:
    """Names of the parameters that take no weight decay: norms, biases, gates' constants, AttnRes queries,
    convolutions."""
    return {
        name for name, parameter in model.named_parameters() if parameter.ndim < 2 or name.split(".")[-2] in _UNDECAYED
    }
