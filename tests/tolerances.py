"""The one table of error limits. A limit is never loosened in the commit that breaks it, and never warns instead of
failing."""

from __future__ import annotations

import torch

# Relative RMS against the float64 definition, by what is compared and the dtype it ran in.
LIMITS = {
    ("operation", torch.float64): 1e-12,
    ("memory", torch.float64): 1e-12,
    ("model", torch.float64): 1e-10,
    ("operation", torch.float32): 1e-6,
    ("memory", torch.float32): 2e-6,
    ("model", torch.float32): 2e-5,
    # gradients of the float32 chunkwise forms against the float64 recurrence
    ("gradient", torch.float32): 5e-6,
    ("gradient", torch.float64): 1e-12,
}


def relative_rms(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """RMS of the difference over RMS of `expected`, in float64; an all-zero `expected` is compared absolutely."""
    assert actual.shape == expected.shape, f"shapes differ: {tuple(actual.shape)} and {tuple(expected.shape)}"
    if not expected.numel():
        return 0.0
    difference = (actual.double() - expected.double()).square().mean().sqrt()
    scale = expected.double().square().mean().sqrt()
    return (difference / scale if scale > 0 else difference).item()


def assert_close(actual: torch.Tensor, expected: torch.Tensor, what: str, dtype: torch.dtype | None = None) -> None:
    """Fail when `actual` is further from `expected` than the table allows for `what` in `dtype` (default: actual's)."""
    error = relative_rms(actual, expected)
    limit = LIMITS[what, dtype or actual.dtype]
    assert error <= limit, f"relative RMS {error:.2e} is over the limit {limit:.0e} for {what}"
