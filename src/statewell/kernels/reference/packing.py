"""Packed streams: run something over the segments of one [1, T] row, those of equal lengths in one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def lengths_of(cu_seqlens: Tensor) -> list[int]:
    """Tokens of each segment."""
    return cu_seqlens.diff().tolist()


def over_segments(
    run: Callable[..., Tensor],
    queries: Tensor,
    keys: Sequence[Tensor],
    query_lengths: list[int],
    key_lengths: list[int],
) -> Tensor:
    """`run(queries, *keys)` on every segment of packed tensors [1, T, ...], [1, S, ...]; returns [1, T, ...].

    Segments with the same pair of lengths go through `run` as one batch [n, t, ...]: training packs N windows
    of one length, and those cost a single call. Segments without queries are left out.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for n, pair in enumerate(zip(query_lengths, key_lengths, strict=True)):
        groups.setdefault(pair, []).append(n)
    if len(groups) == 1:
        ((t, s),) = groups
        N = len(query_lengths)
        rows = [keyed.reshape(N, s, *keyed.shape[2:]) for keyed in keys]
        return run(queries.reshape(N, t, *queries.shape[2:]), *rows).flatten(0, 1)[None]
    # split, not slices: its gradient is one concatenation instead of one zero-filled stream per segment
    query_parts = queries[0].split(query_lengths)
    key_parts = [keyed[0].split(key_lengths) for keyed in keys]
    parts: dict[int, Tensor] = {}
    for (t, _), members in groups.items():
        if t == 0:
            continue
        rows = [torch.stack([part[n] for n in members]) for part in key_parts]
        o = run(torch.stack([query_parts[n] for n in members]), *rows)
        parts.update(zip(members, o.unbind(0), strict=True))
    return torch.cat([parts[n] for n in sorted(parts)])[None]
