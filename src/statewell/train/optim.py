"""The optimiser and its schedule: fused AdamW, linear warm-up, cosine down, both as functions of the share of
budget spent.
"""

from __future__ import annotations

import math
from collections.abc import Set

import torch
from torch import nn

from statewell.config.run import TrainConfig


def build_optimizer(model: nn.Module, no_decay: Set[str], config: TrainConfig) -> torch.optim.AdamW:
    """AdamW over all parameters of `model`; those named in `no_decay` have no weight decay."""
    decayed = [p for name, p in model.named_parameters() if name not in no_decay]
    plain = [p for name, p in model.named_parameters() if name in no_decay]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=True,
    )


def learning_rate(share: float, config: TrainConfig) -> float:
    """The rate after `share` (0 to 1) of the budget: from zero to the highest over the warm-up, then half a
    cosine.
    """
    if share < config.warmup:
        return config.learning_rate * share / config.warmup
    along = (share - config.warmup) / (1 - config.warmup) if config.warmup < 1 else 0.0
    cosine = 0.5 * (1 + math.cos(math.pi * min(along, 1.0)))
    return config.learning_rate * (config.final_rate + (1 - config.final_rate) * cosine)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def gradient_norm(model: nn.Module) -> torch.Tensor:
    """The norm over all gradients of `model`, a scalar tensor."""
    return nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])


def clip_gradients(model: nn.Module, highest: float, norm: torch.Tensor) -> None:
    """Scale all gradients, whose norm is `norm`, down to the norm `highest`, in place."""
    nn.utils.clip_grads_with_norm_(model.parameters(), highest, norm)
