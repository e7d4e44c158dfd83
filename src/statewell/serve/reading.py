"""From token events to what is said: text and tool calls, ended before stop strings, and why it ended.

Runs in the engine's thread, so that a choice that is over stops before its next token. Start at `ChoiceReader`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from statewell.engine.request import Logprobs, TokenEvent, Usage
from statewell.engine.text_stream import TextStream, UntilStop
from statewell.text.reply import Called, Content, Reasoning, ReplyPiece, ReplyReader, ToolCall


@dataclass(frozen=True, kw_only=True)
class Said:
    """A token that was said, with its log-probabilities where they were asked for."""

    token: int
    logprobs: Logprobs | None


@dataclass(frozen=True, kw_only=True)
class Part:
    """What became certain with one event.

    content, reasoning: text. calls: whole ones. echoed: the prompt's own log-probabilities. finish: of the choice, in
    OpenAI's words. usage: of the request, when all its choices are over. error: one sentence in place of all that
    is missing. last: nothing more comes for the request.
    """

    choice: int
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    said: tuple[Said, ...] = ()
    echoed: tuple[Logprobs | None, ...] | None = None
    finish: str | None = None
    usage: Usage | None = None
    error: str | None = None
    last: bool = False


class ChoiceReader(Protocol):
    """Reads one choice. ids: its tokens so far."""

    ids: list[int]

    @property
    def over(self) -> bool:
        """The text has ended, whatever tokens still come."""
        ...

    def read(self, event: TokenEvent) -> Part:
        """Take the choice's next event in."""
        ...


class TextReader:
    """A plain continuation."""

    def __init__(self, decode_bytes: Callable[[Sequence[int]], bytes], stop: Sequence[str]) -> None:
        """Raises RequestError when a stop string is empty."""
        self._text = TextStream(decode_bytes, stop)
        self.ids: list[int] = []

    @property
    def over(self) -> bool:
        return self._text.stopped

    def read(self, event: TokenEvent) -> Part:
        shown = _shown(event, self.over)
        self.ids += [] if event.token is None else [event.token]
        content = self._text.push([said.token for said in shown])
        if event.finish is not None:
            content += self._text.finish()
        return _part(event, content, "", (), shown, _finish(event, self.over, False))


class ChatReader:
    """A reply in a chat format. stop: strings that end what it answers; they mean nothing in reasoning and calls."""

    def __init__(self, reply: ReplyReader, stop: Sequence[str]) -> None:
        """Raises RequestError when a stop string is empty."""
        self._reply, self._until = reply, UntilStop(stop)
        self._called = False
        self.ids: list[int] = []

    @property
    def over(self) -> bool:
        return self._until.stopped or self._reply.done

    def read(self, event: TokenEvent) -> Part:
        shown = _shown(event, self.over)
        self.ids += [] if event.token is None else [event.token]
        pieces = self._reply.push([said.token for said in shown])
        over = self.over
        if event.finish is not None:
            pieces += self._reply.finish()
        content = "".join(self._until.push(piece.text) for piece in pieces if isinstance(piece, Content))
        if event.finish is not None or self._reply.done:
            content += self._until.finish()
        reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
        calls = _calls(pieces)
        self._called = self._called or bool(calls)
        finish = _finish(event, over or self._until.stopped, self._called)
        return _part(event, content, reasoning, calls, shown, finish)


def _shown(event: TokenEvent, over: bool) -> tuple[Said, ...]:
    """The event's token, unless it is one that ends the choice, or comes after the end."""
    if event.token is None or over or event.finish == "stop":
        return ()
    return (Said(token=event.token, logprobs=event.logprobs),)


def _calls(pieces: Sequence[ReplyPiece]) -> tuple[ToolCall, ...]:
    return tuple(piece.call for piece in pieces if isinstance(piece, Called))


def _finish(event: TokenEvent, over: bool, called: bool) -> str | None:
    if event.finish is None:
        return None
    if over or event.finish == "stop":
        return "tool_calls" if called else "stop"
    return "length" if event.finish == "context" else event.finish


def _part(
    event: TokenEvent,
    content: str,
    reasoning: str,
    calls: tuple[ToolCall, ...],
    said: tuple[Said, ...],
    finish: str | None,
) -> Part:
    return Part(
        choice=event.choice,
        content=content,
        reasoning=reasoning,
        calls=calls,
        said=said,
        echoed=event.prompt_logprobs,
        finish=finish,
        usage=event.usage,
        error=event.error,
        last=event.usage is not None,
    )
