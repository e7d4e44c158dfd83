"""The next tokens of many conversations at once, each as `sampler.sample` would choose it alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from statewell.engine.constraint import Constraint
from statewell.engine.request import Logprobs
from statewell.engine.sampler import generator_of, sample
from statewell.engine.sampling import Sampling
from statewell.errors import StatewellError


@dataclass
class Chooser:
    """How one conversation chooses: its settings, its random numbers, what it said so far.

    prompt: its tokens, which the repetition penalty looks at too. constraint: says which tokens it may choose from,
    None for all.
    """

    sampling: Sampling
    prompt: frozenset[int]
    generator: torch.Generator = field(init=False)
    said: Counter[int] = field(default_factory=Counter)
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        self.generator = generator_of(self.sampling)

    @property
    def plain(self) -> bool:
        """Whether it is greedy on the model's own scores."""
        return self.sampling.temperature == 0 and self.sampling.as_is and self.constraint is None

    def scores(self, logits: Tensor) -> Tensor:
        """logits [vocab] after penalties, bias and constraint; the given ones are not changed."""
        sampling = self.sampling
        if not sampling.as_is:
            logits = logits.clone()
            seen = torch.tensor(sorted(self.prompt | self.said.keys()), dtype=torch.int64)
            met = logits[seen]
            logits[seen] = torch.where(met > 0, met / sampling.repetition_penalty, met * sampling.repetition_penalty)
            if self.said:
                said = torch.tensor(list(self.said), dtype=torch.int64)
                counts = torch.tensor(list(self.said.values()), dtype=logits.dtype)
                logits[said] -= sampling.presence_penalty + sampling.frequency_penalty * counts
            for token, bias in sampling.logit_bias:
                logits[token] += bias
        if self.constraint is None:
            return logits
        ids = self.constraint.allowed()
        allowed = torch.full_like(logits, float("-inf"))
        allowed[ids] = logits[ids]
        return allowed

    def choose(self, logits: Tensor) -> int:
        """The next token after `logits` [vocab]."""
        return sample(self.scores(logits), self.sampling, self.generator)

    def take(self, token: int) -> None:
        """The conversation goes on with `token`."""
        self.said[token] += 1
        if self.constraint is not None:
            self.constraint.push(token)


def choose(logits: Sequence[Tensor], choosers: Sequence[Chooser]) -> list[int | StatewellError]:
    """One token for each of logits [vocab], or the error of scores that are no numbers."""
    plain = [n for n, chooser in enumerate(choosers) if chooser.plain]
    chosen: list[int | StatewellError] = [0] * len(choosers)
    if plain:
        rows = torch.stack([logits[n] for n in plain])
        largest = rows.max(dim=-1).values
        ids = torch.arange(rows.shape[-1])
        # the lowest id among equals, as `greedy` says; argmax promises none
        tokens = torch.where(rows == largest[:, None], ids, rows.shape[-1]).min(dim=-1).values.tolist()
        finite = largest.isfinite().tolist()
        for n, token, fine in zip(plain, tokens, finite, strict=True):
            chosen[n] = token if fine else _attempt(choosers[n], logits[n])
    for n, chooser in enumerate(choosers):
        if not chooser.plain:
            chosen[n] = _attempt(chooser, logits[n])
    return chosen


def _attempt(chooser: Chooser, logits: Tensor) -> int | StatewellError:
    try:
        return chooser.choose(logits)
    except StatewellError as error:
        return error


def logprobs(logits: Tensor, token: int, top: int) -> Logprobs:
    """Of `token` and of the `top` likeliest, under the model's own scores [vocab]; equals by the lowest id."""
    exact = torch.log_softmax(logits.double(), dim=-1)
    order = torch.sort(exact, descending=True, stable=True).indices[:top].tolist() if top else []
    return Logprobs(float(exact[token]), tuple((n, float(exact[n])) for n in order))
