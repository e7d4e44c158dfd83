"""The loss that training minimises, and the same figure in the unit that results are given in."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F


def mean_nats(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in nats per token. logits: [B, T, vocab]. targets: [B, T] int64.

    Sums in at least fp32; logits that already are fp32 or float64 are used as they lie, without a copy.
    """
    promoted = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.flatten(0, 1).to(promoted), targets.flatten())


def token_nats(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each token, [B, T], in nats and at least fp32."""
    promoted = torch.promote_types(logits.dtype, torch.float32)
    losses = F.cross_entropy(logits.flatten(0, 1).to(promoted), targets.flatten(), reduction="none")
    return losses.view(targets.shape)


def bits_per_byte(nats_per_byte: float) -> float:
    """Nats for each byte of text to bits."""
    return nats_per_byte / math.log(2)
