"""The last answers: by id, so that the memory of one can be saved; by conversation, so that the next turn can be
written in the tokens this one was said in. Token ids only, the memory is the engine's.
"""

from __future__ import annotations

import hashlib
import json
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
        self._conversations: dict[bytes, str] = {}
        self._tokens = 0

    def keep(self, name: str, answer: Answer) -> None:
        """Remember one more."""
        self._answers[name] = answer
        self._tokens += len(answer.ids)
        if answer.messages is not None:
            self._conversations[_digest(answer.owner, answer.messages)] = name
        while len(self._answers) > 1 and (len(self._answers) > MOST_ANSWERS or self._tokens > MOST_TOKENS):
            oldest, gone = self._answers.popitem(last=False)
            self._tokens -= len(gone.ids)
            if gone.messages is not None and self._conversations.get(_digest(gone.owner, gone.messages)) == oldest:
                del self._conversations[_digest(gone.owner, gone.messages)]

    def find(self, owner: str, name: str) -> Answer | None:
        """The owner's answer of that id; None for one that is not here, or another's."""
        answer = self._answers.get(name)
        return answer if answer is not None and answer.owner == owner else None

    def before(self, owner: str, messages: Sequence[Mapping[str, object]]) -> Answer | None:
        """The owner's answer that `messages` go on from, None where it is not here."""
        turns = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
        name = self._conversations.get(_digest(owner, messages[: turns[-1] + 1])) if turns else None
        return None if name is None else self._answers[name]


def _digest(owner: str, messages: Sequence[Mapping[str, object]]) -> bytes:
    """Of what clients send back unchanged: who said what, without reasoning."""
    said = [[message.get("role"), message.get("content"), message.get("tool_calls")] for message in messages]
    return hashlib.sha256(json.dumps([owner, said], sort_keys=True, default=str).encode()).digest()
