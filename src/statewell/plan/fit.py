"""Does it fit: weights and memory against a device's bytes, and the largest context or row count that would."""

from __future__ import annotations

from dataclasses import dataclass

from statewell.config.memory import PAGE, MemorySpec


@dataclass(frozen=True, kw_only=True)
class Fit:
    """yes: weights and reserved memory fit. largest_context, most_rows: what would, 0 for nothing, None for no
    limit."""

    yes: bool
    largest_context: int | None
    most_rows: int | None


def fit(memory: MemorySpec, weights_bytes: int, device_bytes: int, rows: int, context: int) -> Fit:
    """What of `rows` x `context` fits beside the weights on a device of `device_bytes`."""
    free = device_bytes - weights_bytes
    per_row = memory.reserved([context])
    return Fit(
        yes=free >= rows * per_row and free >= 0,
        largest_context=_largest_context(memory, free, rows),
        most_rows=None if per_row == 0 else max(0, free // per_row),
    )


def _largest_context(memory: MemorySpec, free: int, rows: int) -> int | None:
    left = free - rows * memory.fixed_bytes
    if left < 0:
        return 0
    if memory.bytes_per_token == 0:
        return None
    return left // (rows * PAGE * memory.bytes_per_token) * PAGE
