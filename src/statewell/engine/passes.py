"""The model's passes over many conversations at once: tokens of each in, scores out, in one packed stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from statewell.memory.paged import PagedMemory
from statewell.memory.segments import Segments
from statewell.models.backbone import LanguageModel


@dataclass(frozen=True)
class Piece:
    """Tokens a row takes in. scores: of how many of its last tokens the scores are wanted."""

    row: int
    ids: Sequence[int]
    scores: int


def run(model: LanguageModel, memory: PagedMemory, pieces: Sequence[Piece]) -> list[Tensor]:
    """Take all pieces in, each row at most once; the scores [n, vocab] each asked for, on the CPU."""
    bounds = [0]
    for piece in pieces:
        bounds.append(bounds[-1] + len(piece.ids))
    rows = tuple(piece.row for piece in pieces)
    segments = Segments(tuple(bounds), rows, tuple(memory.lengths[row] for row in rows))
    device = model.embedding.weight.device
    with torch.inference_mode():
        ids = torch.tensor([[token for piece in pieces for token in piece.ids]], dtype=torch.int64, device=device)
        hidden = model.hidden(ids, memory.layers, segments)[0]
        ends = list(zip(bounds[1:], pieces, strict=True))
        wanted = [at for end, piece in ends for at in range(end - piece.scores, end)]
        if not wanted:
            return [torch.empty(0, model.config.vocab) for _ in pieces]
        hidden = hidden if len(wanted) == len(hidden) else hidden[torch.tensor(wanted, device=device)]
        return list(model.logits(hidden).cpu().split([piece.scores for piece in pieces]))
