"""Bits per byte on held-out text, two ways: windows of the training length from empty memory (the figure
compared), and whole files with the memory carried through each.

In both, what precedes a predicted token is what the model has read, and no token is predicted from nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from statewell.models import LanguageModel
from statewell.train.corpus import TokenStream
from statewell.train.data import cut_windows
from statewell.train.loss import bits_per_byte, token_nats


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """bits_per_byte over the bytes of text that `tokens` predicted tokens stand for, read as `pieces` windows or files,
    the longest of `longest` tokens.

    truncated_at: the model's context limit where it cut files short (only their first part was read), else None.
    """

    bits_per_byte: float
    tokens: int
    pieces: int
    longest: int
    truncated_at: int | None = None


@torch.no_grad()
def evaluate(model: LanguageModel, held_out: TokenStream, length: int, max_tokens: int, rows: int = 8) -> Evaluation:
    """Windows of `length` inputs, each from empty memory, evenly spaced over the stream when there are too
    many.

    Windows do not overlap and targets are shifted by one, so a window's first input is the last target of the
    one before it: it is given, never predicted. A stream shorter than one window is one shorter window.
    """
    length = min(length, held_out.tokens - 1)
    available = (held_out.tokens - 1) // length
    count = max(1, min(available, max_tokens // length))
    starts = np.arange(count, dtype=np.int64) * available // count * length
    nats, size = 0.0, 0
    with _evaluating(model):
        for first in range(0, count, rows):
            inputs, targets = cut_windows(held_out, starts[first : first + rows], length)
            nats += token_nats(model(inputs), targets).double().sum().item()
            size += text_bytes(held_out, targets)
    return Evaluation(bits_per_byte=bits_per_byte(nats / size), tokens=count * length, pieces=count, longest=length)


@torch.no_grad()
def evaluate_carried(
    model: LanguageModel,
    held_out: TokenStream,
    max_tokens: int,
    longest: int | None = None,
    rows: int = 8,
    piece: int = 512,
) -> Evaluation:
    """Files in the stream's order until `max_tokens`, each read from its first byte with one memory.

    A file is preceded by a separator, from which its first byte is predicted; separators themselves are not
    targets. longest: read no more than this of any file. rows: files side by side. piece: tokens per call.
    """
    limit = model.config.context
    files = _first_files(held_out, max_tokens, longest)
    truncated = limit is not None and any(size > limit for _, size in files)
    if limit is not None:
        files = [(start, min(size, limit)) for start, size in files]
    files.sort(key=lambda file: -file[1])  # files of about one size side by side waste few rows
    nats, written = 0.0, 0
    with _evaluating(model):
        for first in range(0, len(files), rows):
            side = _carry(model, held_out, files[first : first + rows], piece)
            nats, written = nats + side[0], written + side[1]
    tokens = sum(size for _, size in files)
    return Evaluation(
        bits_per_byte=bits_per_byte(nats / written),
        tokens=tokens,
        pieces=len(files),
        longest=files[0][1],
        truncated_at=limit if truncated else None,
    )


def _first_files(held_out: TokenStream, max_tokens: int, longest: int | None) -> list[tuple[int, int]]:
    """Start and size of the files to read, the last one cut where the budget ends."""
    files: list[tuple[int, int]] = []
    left = max_tokens
    for start, after in zip(held_out.bounds[:-1].tolist(), held_out.bounds[1:].tolist(), strict=True):
        size = min(after - 1 - start, left, longest or left)
        if size <= 0:
            break
        files.append((start, size))
        left -= size
    return files


def text_bytes(stream: TokenStream, ids: torch.Tensor) -> int:
    """How many bytes of text `ids` of `stream` stand for; at least 1."""
    if stream.token_bytes is None:
        return max(1, ids.numel())
    return max(1, int(stream.token_bytes[ids.numpy()].sum()))


def _carry(
    model: LanguageModel, held_out: TokenStream, files: Sequence[tuple[int, int]], piece: int
) -> tuple[float, int]:
    """Nats over `files` (longest first) read side by side, one row of memory each, and the bytes they stand for."""
    longest = files[0][1]
    memory = model.new_memory(len(files), capacity=longest)
    nats, written = 0.0, 0
    for begin in range(0, longest, piece):
        width = min(piece, longest - begin)
        # rows whose file has ended read separators; nothing of theirs is counted
        ids = torch.zeros(len(files), width + 1, dtype=torch.int64)
        counted = torch.zeros(len(files), width, dtype=torch.bool)
        for row, (start, size) in enumerate(files):
            taken = min(max(size - begin, 0), width)
            # one earlier: the first input is the separator before the file, or the last byte read
            window = held_out.ids[start + begin - 1 : start + begin + taken] if taken else ()
            ids[row, : len(window)] = torch.from_numpy(np.asarray(window, dtype=np.int64))
            counted[row, :taken] = True
        losses = token_nats(model(ids[:, :-1], memory), ids[:, 1:])
        nats += losses[counted].double().sum().item()
        written += text_bytes(held_out, ids[:, 1:][counted])
    return nats, written


@contextmanager
def _evaluating(model: LanguageModel) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
