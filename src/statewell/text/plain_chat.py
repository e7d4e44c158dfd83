"""Conversation with a model that was never taught one: names before lines, as in a play.

`User: ...` and `Assistant:`, nothing else. There are no control tokens, so a user can write a line that looks like the
assistant's: this is a way to try a model, not a boundary.
"""

from __future__ import annotations

from collections.abc import Sequence

from statewell.errors import RequestError
from statewell.text.chat import Chat, Segment, segment_ids
from statewell.text.reply import Content, ReplyPiece, ReplyReader, RunOfText
from statewell.text.tokenizer import Tokenizer

_NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}


class PlainTemplate:
    """Works with any tokenizer. Its prompt opens as the tokenizer opens any text."""

    name = "plain (this model has no chat format of its own)"
    stop = ("\nUser:", "\nSystem:")
    answer_end: str | None = None
    tells_form = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def segments(self, chat: Chat) -> list[Segment]:
        """One text. Raises RequestError for tools and the like, of which such a model knows nothing."""
        if chat.tools or chat.tool_choice == "required" or any(each.tools or each.tool_calls for each in chat.messages):
            raise RequestError("This model has no chat format of its own, so it knows no tools; leave them out.")
        if chat.response_format is not None and chat.response_format.get("type") != "text":
            raise RequestError("This model has no chat format of its own, so response_format says nothing to it.")
        lines: list[str] = []
        for at, message in enumerate(chat.messages):
            if message.role not in _NAMES:
                raise RequestError(f"messages[{at}] is a tool's result, and this model knows no tools; leave it out.")
            lines.append(f"{_NAMES[message.role]}: {message.content}\n")
        return [Segment("".join(lines) + ("Assistant:" if chat.reply else ""))]

    def reader(self, chat: Chat) -> ReplyReader:
        return PlainReader(self._tokenizer)

    def ids(self, chat: Chat) -> list[int]:
        return [*self._tokenizer.specials.opening, *segment_ids(self._tokenizer, self.segments(chat))]


class PlainReader:
    """Everything is content, without the space after `Assistant:`; control tokens end it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._controls = frozenset(tokenizer.controls.values())
        self._run = RunOfText(tokenizer.decode_bytes)
        self._begun = False
        self.done = False
        self.unfinished = False

    def push(self, ids: Sequence[int]) -> list[ReplyPiece]:
        """Take tokens in; return what is now certain."""
        pieces: list[ReplyPiece] = []
        for token in ids:
            self.done = self.done or token in self._controls
            if self.done:
                break
            pieces += self._text(self._run.push(token))
        return pieces

    def finish(self) -> list[ReplyPiece]:
        """The tokens have ended: return what was held back."""
        self.done = True
        return self._text(self._run.end())

    def _text(self, text: str) -> list[ReplyPiece]:
        if text and not self._begun:
            self._begun, text = True, text.removeprefix(" ")
        return [Content(text)] if text else []
