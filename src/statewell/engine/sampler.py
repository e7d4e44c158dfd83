"""From the logits of one position to one token id.

Pure functions: the random source is a `torch.Generator` that the caller owns, and every token takes exactly
one number from it. The filters are applied in the order temperature -> top_k -> top_p -> min_p, each to the
renormalised result of the one before. Nothing here sees text. Start at `sample`.
"""

from __future__ import annotations

import math

import torch

from statewell.engine.sampling import Sampling
from statewell.errors import StatewellError


def sample(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Choose the next token id from `logits` [vocab].

    Temperature 0 is greedy and takes nothing from `generator`.
    Logits of -inf are never chosen. Raises StatewellError when the logits hold NaN or +inf, or are all -inf.
    """
    if sampling.temperature == 0:
        return greedy(logits)
    return draw(probabilities(logits, sampling), generator)


def generator_of(sampling: Sampling) -> torch.Generator:
    """A fresh random source at the seed, on the CPU, so that a seed means the same on every device."""
    return torch.Generator().manual_seed(sampling.seed)


def greedy(logits: torch.Tensor) -> int:
    """The most likely token of `logits` [vocab]; the lowest id among equals (argmax promises none)."""
    _check_finite(logits)
    return int((logits == logits.max()).nonzero()[0])


def probabilities(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The distribution `sample` draws from: [vocab] float64 on the CPU, summing to 1, 0 for what is left out.

    `sampling.temperature` must be above 0. Among equal logits the lowest ids are kept.
    """
    _check_finite(logits)
    exact = logits.detach().to("cpu", torch.float64)
    # The largest logit is subtracted before the division: a temperature near 0 then gives 0 and -inf, never
    # inf - inf.
    p = torch.softmax((exact - exact.max()) / sampling.temperature, dim=-1)
    if sampling.top_k is not None:
        p = _keep(p, top_k_mask(p, sampling.top_k))
    if sampling.top_p < 1:
        p = _keep(p, top_p_mask(p, sampling.top_p))
    if sampling.min_p > 0:
        p = _keep(p, min_p_mask(p, sampling.min_p))
    return p


def top_k_mask(p: torch.Tensor, top_k: int) -> torch.Tensor:
    """True for the `top_k` most likely tokens of `p` [vocab], the lowest ids first among equals."""
    kept = torch.zeros_like(p, dtype=torch.bool)
    kept[_likeliest_first(p)[:top_k]] = True
    return kept


def top_p_mask(p: torch.Tensor, top_p: float) -> torch.Tensor:
    """True for the fewest likeliest tokens of `p` [vocab] that sum to `top_p` (arXiv:1904.09751)."""
    order = _likeliest_first(p)
    reached = p[order].cumsum(0)
    # A token is needed while the sum before it has not reached top_p.
    before = torch.cat([torch.zeros_like(reached[:1]), reached[:-1]])
    kept = torch.zeros_like(p, dtype=torch.bool)
    kept[order] = before < top_p
    return kept


def min_p_mask(p: torch.Tensor, min_p: float) -> torch.Tensor:
    """True where `p` [vocab] is at least `min_p` times its largest value (arXiv:2407.01082)."""
    return p >= min_p * p.max()


def draw(p: torch.Tensor, generator: torch.Generator) -> int:
    """The token where the running sum of `p` [vocab] float64 passes one uniform number of `generator`."""
    reached = p.cumsum(0)
    u = torch.rand((), generator=generator, dtype=torch.float64)
    index = int(torch.searchsorted(reached, u * reached[-1], right=True))
    # u * total may round up to the total itself, one past the last token that has any probability.
    return min(index, int(p.nonzero()[-1]))


def _likeliest_first(p: torch.Tensor) -> torch.Tensor:
    return torch.sort(p, descending=True, stable=True).indices


def _keep(p: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    p = torch.where(kept, p, 0.0)
    return p / p.sum()


def _check_finite(logits: torch.Tensor) -> None:
    largest = logits.max().item()
    if not math.isfinite(largest):
        raise StatewellError(
            f"The largest of the model's scores for the next token is {largest}, not a finite number; "
            "its weights are damaged or training diverged: load an earlier checkpoint."
        )
