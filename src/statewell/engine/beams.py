"""Beam search: the likeliest continuations of one prompt. Each beam is a conversation; memory is the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from statewell.engine.choosing import Chooser
from statewell.engine.request import FinishReason


@dataclass(frozen=True)
class Beam:
    """A continuation so far: its new tokens, the log-probability of each, and their sum."""

    tokens: tuple[int, ...] = ()
    each: tuple[float, ...] = ()
    total: float = 0.0

    def with_token(self, token: int, logprob: float) -> Beam:
        return Beam((*self.tokens, token), (*self.each, logprob), self.total + logprob)

    @property
    def score(self) -> float:
        """Mean log-probability: longer is not worse by being longer."""
        return self.total / max(1, len(self.tokens))


@dataclass(frozen=True)
class Ended:
    """A finished continuation and why it ended."""

    beam: Beam
    finish: FinishReason


class BeamSearch:
    """The beams of one request.

    width: how many. stop: tokens that end one. room: new tokens at most; out_of_room: what ends one that has them.
    """

    def __init__(
        self, width: int, stop: frozenset[int], room: int, out_of_room: FinishReason, chooser: Chooser
    ) -> None:
        self._width, self._stop, self._room, self._chooser = width, stop, room, chooser
        self._out_of_room: FinishReason = out_of_room
        self.beams = [Beam()]
        self.ended: list[Ended] = []

    @property
    def done(self) -> bool:
        """Whether no beam goes on."""
        return not self.beams

    def advance(self, logits: Sequence[Tensor]) -> list[int]:
        """Take the scores [1, vocab] of every beam in; for each new beam the place of the one it continues."""
        scored = torch.stack([self._chooser.scores(row[0]) for row in logits]).double().log_softmax(dim=-1)
        totals = scored + torch.tensor([beam.total for beam in self.beams], dtype=torch.float64)[:, None]
        best = torch.sort(totals.flatten(), descending=True, stable=True).indices[: 2 * self._width].tolist()
        parents, beams = [], []
        for index in best:
            place, token = divmod(index, scored.shape[-1])
            beam = self.beams[place].with_token(token, float(scored[place, token]))
            if token in self._stop:
                self.ended.append(Ended(beam, "stop"))
            elif len(beams) < self._width and beam.total > float("-inf"):
                parents.append(place)
                beams.append(beam)
        self.beams = beams
        if beams and len(beams[0].tokens) >= self._room:
            self.ended.extend(Ended(beam, self._out_of_room) for beam in beams)
            self.beams = []
        elif len(self.ended) >= self._width:
            self.beams = []
        return parents if self.beams else []

    def best(self, count: int) -> list[Ended]:
        """The `count` finished continuations of the highest mean log-probability."""
        return sorted(self.ended, key=lambda ended: -ended.beam.score)[:count]
