"""A request by itself, the plain way: what the engine must give for it whatever else runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from statewell.engine.choosing import Chooser, choose
from statewell.engine.engine import Engine
from statewell.engine.request import Request, TokenEvent
from statewell.models import LanguageModel


def text(count: int, seed: int) -> tuple[int, ...]:
    """Seeded bytes of a small alphabet, so that they repeat."""
    return tuple(torch.randint(97, 105, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


def alone(model: LanguageModel, request: Request) -> list[int]:
    """The first choice's tokens, one pass for the prompt and one for each token after it."""
    memory, chooser, made = model.new_memory(rows=1), Chooser(request.sampling, frozenset(request.prompt)), []
    ids = torch.tensor([list(request.prompt)])
    limit = model.config.context
    with torch.inference_mode():
        while len(made) < request.max_tokens:
            (token,) = choose([model(ids, memory)[0, -1]], [chooser])
            assert isinstance(token, int)
            made.append(token)
            chooser.said[token] += 1
            full = limit is not None and len(request.prompt) + len(made) > limit
            if token in request.stop or full:
                break
            ids = torch.tensor([[token]])
    return made


def run_all(engine: Engine, most: int = 10_000) -> list[TokenEvent]:
    """Step until nothing is left to do."""
    events = []
    for _ in range(most):
        if not engine.busy:
            return events
        events += engine.step()
    raise AssertionError(f"still busy after {most} steps")


def tokens(events: Sequence[TokenEvent], number: int, choice: int = 0) -> list[int]:
    """What one choice of one request said."""
    return [e.token for e in events if e.request == number and e.choice == choice and e.token is not None]


class Turns:
    """A constraint that allows the n-th of `sets` for the n-th token, again and again."""

    def __init__(self, sets: Sequence[Sequence[int]], at: int = 0) -> None:
        self._sets, self._at = sets, at

    def allowed(self) -> torch.Tensor:
        return torch.tensor(self._sets[self._at % len(self._sets)])

    def push(self, token: int) -> None:
        assert token in self.allowed()
        self._at += 1

    def fork(self) -> Turns:
        return Turns(self._sets, self._at)
