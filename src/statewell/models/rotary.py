"""Rotary positions: channel pairs of a query or key turned by an angle that grows with the token's place."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, positions: Tensor, rotary_dim: int, theta: float) -> Tensor:
    """x [1, T, H, K] with channel i and i + rotary_dim/2 turned together, i < rotary_dim/2; the others stay.

    positions: [T] places of the tokens in their rows. Angles are float64: at place 10^6 a float32 angle is off by 0.06.
    Source: arXiv:2104.09864, in the halves form of GPT-NeoX and Qwen3-Next.
    """
    turn = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=x.device) / -rotary_dim
    angle = positions.to(torch.float64)[:, None] * theta**turn  # [T, rotary_dim/2]
    cos, sin = angle.cos().to(x.dtype)[:, None], angle.sin().to(x.dtype)[:, None]
    half = rotary_dim // 2
    first, second, rest = x.split((half, half, x.shape[-1] - rotary_dim), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
