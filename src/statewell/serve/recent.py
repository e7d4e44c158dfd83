"""The last answers, by id, so that the memory of one can be saved: token ids only, the memory is the engine's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_ANSWERS = 1024
MOST_TOKENS = 8 * 2**20


@dataclass(frozen=True)
class Answer:
    """ids: of the prompt and of what was said. messages: of a chat, with the answer."""

    owner: str
    ids: tuple[int, ...]
    messages: Sequence[Mapping[str, object]] | None


class Recent:
    """Answers, of which the oldest go first."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._tokens = 0

    def keep(self, name: str, answer: Answer) -> None:
        """Remember one more."""
        self._answers[name] = answer
        self._tokens += len(answer.ids)
        while len(self._answers) > 1 and (len(self._answers) > MOST_ANSWERS or self._tokens > MOST_TOKENS):
            _, gone = self._answers.popitem(last=False)
            self._tokens -= len(gone.ids)

    def find(self, owner: str, name: str) -> Answer | None:
        """The owner's answer of that id; None for one that is not here, or another's."""
        answer = self._answers.get(name)
        return answer if answer is not None and answer.owner == owner else None
