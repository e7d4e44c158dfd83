"""Conversation with a model that was never taught one: names before lines, as in a play.

`User: ...` and `Assistant:`, nothing else. There are no control tokens, so a user can write a line that looks like the
assistant's: this is a way to try a model, not a boundary.
"""

from __future__ import annotations

from collections.abc import Sequence

from statewell.errors import RequestError
from statewell.text.chat import NOTHING_SAID, Chat, Said, Segment
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
        for at, message in enumerate(chat.messages):
            if message.role not in _NAMES:
                raise RequestError(f"messages[{at}] is a tool's result, and this model knows no tools; leave it out.")
        return [Segment(_text(chat, NOTHING_SAID))]

    def reader(self, chat: Chat) -> ReplyReader:
        return PlainReader(self._tokenizer)

    def ids(self, chat: Chat, said: Said = NOTHING_SAID) -> list[int]:
        self.segments(chat)  # refuses what it cannot say
        text, opening = _text(chat, said), self._tokenizer.specials.opening
        known = max((each for each in said if text.startswith(each)), key=len, default="")
        return [*opening, *said.get(known, ()), *self._tokenizer.encode(text[len(known) :])]


def _agree(said: str, begun: str, content: str) -> bool:
    """Whether `content` was said right after `begun`, or as much of it as `said` has."""
    whole = begun + content
    return said.startswith(whole) or (len(said) > len(begun) and whole.startswith(said))


def _text(chat: Chat, said: Said) -> str:
    """The whole conversation. There is a space after `Assistant:`, unless the model itself said none."""
    text = ""
    for message in chat.messages:
        begun = f"{text}{_NAMES[message.role]}:"
        as_said = message.role == "assistant" and any(_agree(each, begun, message.content) for each in said)
        text = begun + ("" if as_said else " ") + message.content + "\n"
    return text + ("Assistant:" if chat.reply else "")


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
