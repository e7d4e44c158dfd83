"""How far the operation of each mixer, over many tokens at once, is from the same tokens one by one.

The many go through the kernel that `sw.ops` chooses here, the single tokens through the reference, which is
the definition. In float64, with a carried-in state. Start at `distance_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import elu, normalize

from statewell.config.mixers import (
    AttentionSpec,
    DeltaSpec,
    GatedDeltaSpec,
    KDASpec,
    LinearSpec,
    MixerSpec,
    MLASpec,
    RotaryAttentionSpec,
)
from statewell.errors import StatewellError
from statewell.kernels import ops
from statewell.kernels.registry import use

State = TypeVar("State")

# Two whole chunks of 64 and part of a third; more value heads than key heads, and K other than V.
B, T, H, HV, K, V = 2, 150, 2, 4, 16, 8


def relative_rms(actual: Tensor, expected: Tensor) -> float:
    """RMS of the difference over RMS of `expected`; 0 for equal tensors, all-zero ones included."""
    difference = (actual - expected).square().mean().sqrt().item()
    return difference / expected.square().mean().sqrt().item() if difference else 0.0


class Draws:
    """Seeded float64 inputs of the shapes above."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64)

    def q_k_v(self) -> tuple[Tensor, Tensor, Tensor]:
        """q and k [B, T, H, K] of unit length, v [B, T, HV, V]."""
        q, k = (normalize(self.normal(B, T, H, K), dim=-1) for _ in range(2))
        return q, k, self.normal(B, T, HV, V)

    def beta(self) -> Tensor:
        """[B, T, HV] in (0, 2): past 1 a write overshoots, where forms differ first."""
        return 2 * self.normal(B, T, HV).sigmoid()


def token_by_token(
    step: Callable[..., tuple[Tensor, State]], inputs: tuple[Tensor, ...], state: State
) -> tuple[Tensor, State]:
    """o [B, T, HV, V] and the last state of `step` on every token of `inputs` ([B, T, ...] each) in turn."""
    outputs = []
    with use("reference"):
        for t in range(T):
            o, state = step(*(x[:, t] for x in inputs), state=state)
            outputs.append(o)
    return torch.stack(outputs, dim=1), state


def distance(
    many: Callable[..., tuple[Tensor, Tensor]],
    step: Callable[..., tuple[Tensor, Tensor]],
    inputs: tuple[Tensor, ...],
    state: Tensor,
) -> float:
    """The larger of the distances between outputs and between final states."""
    pairs = zip(many(*inputs, state=state), token_by_token(step, inputs, state), strict=True)
    return max(relative_rms(actual, expected) for actual, expected in pairs)


@singledispatch
def distance_of(spec: MixerSpec) -> float:
    """The distance of the operation that a mixer of `spec` runs on, at the shapes above."""
    raise StatewellError(f"nothing checks a {type(spec).__name__} token by token; add it to bench/recurrence.py.")


@distance_of.register
def _(spec: AttentionSpec) -> float:
    """All queries at once, against each query over the keys and values kept so far."""
    return attention_distance(H)


@distance_of.register
def _(spec: RotaryAttentionSpec) -> float:
    """As attention, its query heads sharing key heads; the rotation comes before."""
    return attention_distance(HV)


def attention_distance(query_heads: int) -> float:
    """Of `query_heads` over H key heads."""
    draws = Draws()
    q, k, v = (draws.normal(B, T, heads, K) for heads in (query_heads, H, H))
    with use("reference"):
        each = [ops.attention(q[:, t : t + 1], k[:, : t + 1], v[:, : t + 1]) for t in range(T)]
    return relative_rms(ops.attention(q, k, v), torch.cat(each, dim=1))


@distance_of.register
def _(spec: LinearSpec) -> float:
    """With its normaliser."""
    draws = Draws()
    q, k = (elu(draws.normal(B, T, H, K)) + 1 for _ in range(2))
    v = draws.normal(B, T, HV, V)
    state: tuple[Tensor, Tensor] = (draws.normal(B, HV, K, V), draws.normal(B, HV, K).abs())
    o, (S, z) = ops.linear(q, k, v, state=state)
    expected, (last_S, last_z) = token_by_token(ops.linear_step, (q, k, v), state)
    return max(relative_rms(o, expected), relative_rms(S, last_S), relative_rms(z, last_z))


@distance_of.register
def _(spec: DeltaSpec) -> float:
    draws = Draws()
    inputs = (*draws.q_k_v(), draws.beta())
    return distance(ops.delta, ops.delta_step, inputs, draws.normal(B, HV, K, V))


@distance_of.register
def _(spec: GatedDeltaSpec) -> float:
    """Decays from almost none to e^-40 in one token."""
    draws = Draws()
    g = -draws.normal(B, T, HV).abs() * 10 ** draws.normal(B, T, HV)
    inputs = (*draws.q_k_v(), g, draws.beta())
    return distance(ops.gated_delta, ops.gated_delta_step, inputs, draws.normal(B, HV, K, V))


@distance_of.register
def _(spec: KDASpec) -> float:
    """Every channel fades by itself: from almost nothing to almost all, or no faster than the gate's lower bound."""
    draws = Draws()
    if spec.lower_bound is None:
        g = -draws.normal(B, T, HV, K).abs() * 10 ** draws.normal(B, T, HV, K)
    else:
        g = spec.lower_bound * draws.normal(B, T, HV, K).sigmoid()
    inputs = (*draws.q_k_v(), g, draws.beta())
    return distance(ops.kda, ops.kda_step, inputs, draws.normal(B, HV, K, V))


@distance_of.register
def _(spec: MLASpec) -> float:
    """Keys and values made of all latents at once, against each query brought down to the latents kept so far."""
    draws = Draws()
    q = draws.normal(B, T, H, K + V)
    latent, rope, up = draws.normal(B, T, K), draws.normal(B, T, V), draws.normal(H, K + V, K)
    with use("reference"):
        each = [ops.mla_absorbed(q[:, t : t + 1], latent[:, : t + 1], rope[:, : t + 1], up) for t in range(T)]
    return relative_rms(ops.mla(q, latent, rope, up), torch.cat(each, dim=1))
