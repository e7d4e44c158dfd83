"""Replies: what a model says, taken apart while it comes, token by token.

A reader never waits for the end: text comes out with the token that completes it, a tool call when its last token is
in. Nothing a model says is an error; what does not fit its format is left out or shown as text, and what was cut off
is told by `unfinished`. Start at `ReplyReader`.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from statewell.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call the model made. arguments: JSON as text, kept even where it is broken."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Content:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class Called:
    """A whole tool call."""

    call: ToolCall


ReplyPiece = Content | Reasoning | Called


class ReplyReader(Protocol):
    """Reads one reply. After `finish` it is spent."""

    @property
    def done(self) -> bool:
        """The reply said that it is over; what follows belongs to nobody."""
        ...

    @property
    def unfinished(self) -> bool:
        """A tool call was begun and not ended, and is left out."""
        ...

    def push(self, ids: Sequence[int]) -> list[ReplyPiece]:
        """Take tokens in; return what is now certain."""
        ...

    def finish(self) -> list[ReplyPiece]:
        """The tokens have ended: return what was held back."""
        ...


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A whole reply."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]


def collect(pieces: Iterable[ReplyPiece]) -> Reply:
    """The whole of what came in pieces."""
    every = list(pieces)
    return Reply(
        content="".join(piece.text for piece in every if isinstance(piece, Content)),
        reasoning="".join(piece.text for piece in every if isinstance(piece, Reasoning)),
        tool_calls=tuple(piece.call for piece in every if isinstance(piece, Called)),
    )


@dataclass
class RunOfText:
    """Tokens of plain text between two control tokens, as far as their characters are whole."""

    decode_bytes: Callable[[Sequence[int]], bytes]
    _utf8: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )

    def push(self, token: int) -> str:
        """The characters that `token` completes."""
        return self._utf8.decode(self.decode_bytes([token]))

    def end(self) -> str:
        """The run is over: an incomplete character comes out as U+FFFD."""
        return self._utf8.decode(b"", final=True)


class MarkedReader(ABC):
    """A reply whose parts stand between control tokens: what it said so far, to be told apart by a format.

    markers: the control tokens that mean something, by id; any other says nothing.
    """

    def __init__(self, markers: Mapping[int, str], tokenizer: Tokenizer) -> None:
        self._markers = markers
        self._controls = frozenset(tokenizer.controls.values())
        self._run = RunOfText(tokenizer.decode_bytes)
        self._calls = 0
        self.done = False
        self.unfinished = False

    def push(self, ids: Sequence[int]) -> list[ReplyPiece]:
        """Take tokens in; return what is now certain."""
        pieces: list[ReplyPiece] = []
        for token in ids:
            if self.done:
                break
            if token in self._markers:
                pieces += self._text(self._run.end()) + self._marker(self._markers[token])
            elif token not in self._controls:
                pieces += self._text(self._run.push(token))
        return pieces

    def finish(self) -> list[ReplyPiece]:
        """The tokens have ended: return what was held back."""
        pieces = [] if self.done else self._text(self._run.end())
        self._end()
        return pieces

    @abstractmethod
    def _text(self, text: str) -> list[ReplyPiece]:
        """Plain text came."""

    @abstractmethod
    def _marker(self, marker: str) -> list[ReplyPiece]:
        """A control token that means something came."""

    @abstractmethod
    def _end(self) -> None:
        """The reply is over."""
