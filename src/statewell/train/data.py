"""Batches of windows out of a stream. Which windows a step sees is a pure function of the seed and the step,
nothing else.
"""

from __future__ import annotations

import numpy as np
import torch

from statewell.train.corpus import TokenStream

Batch = tuple[torch.Tensor, torch.Tensor]


def window_starts(tokens: int, seed: int, step: int, rows: int, length: int) -> np.ndarray:
    """[rows] int64: where the windows of `step` begin in a stream of `tokens`.

    Philox is a counter-based generator: the seed is its key, the step its counter, so no state has to be
    kept. Raw 64-bit draws are used, since numpy keeps those the same from version to version; their
    remainder's bias is below 1e-9 for any stream under 10 GB.
    """
    raw = np.random.Philox(key=seed, counter=[0, 0, 0, step]).random_raw(rows)
    return (raw % np.uint64(tokens - length)).astype(np.int64)


def batch_at(stream: TokenStream, seed: int, step: int, rows: int, length: int) -> Batch:
    """Inputs and targets of one step, [rows, length] int64 each; a target is the token after its input."""
    starts = window_starts(stream.tokens, seed, step, rows, length)
    return cut_windows(stream, starts, length)


def cut_windows(stream: TokenStream, starts: np.ndarray, length: int) -> Batch:
    """Inputs and targets, [len(starts), length] int64 each, of the windows at `starts`."""
    windows = torch.from_numpy(stream.ids[starts[:, None] + np.arange(length + 1)].astype(np.int64))
    return windows[:, :-1], windows[:, 1:]
