"""Kimi Linear's chat format, which is Kimi K2's: turns between control tokens, calls in a section of their own.

`<|im_user|>name<|im_middle|>text<|im_end|>`, a turn of the system or of a tool with `<|im_system|>`. It has no channel
for reasoning, and nothing is said that the conversation does not say: K2's template puts a system message of its own
before one that has none, this does not. Start at `KimiTemplate.segments`.
Source: token names of the released tokenizer_config.json; the turns, the tool section and `## Return of` as in K2's
published tool_call_guidance.md and vLLM's kimi_k2 parser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from statewell.errors import RequestError
from statewell.text.chat import NOTHING_SAID, Chat, Message, Said, Segment, compact_json, segment_ids
from statewell.text.reply import Called, Content, MarkedReader, ReplyPiece, ReplyReader, ToolCall
from statewell.text.tokenizer import Tokenizer

SYSTEM, USER, ASSISTANT = "<|im_system|>", "<|im_user|>", "<|im_assistant|>"
MIDDLE, END = "<|im_middle|>", "<|im_end|>"
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENT, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
MARKERS = (SYSTEM, USER, ASSISTANT, MIDDLE, END, SECTION, SECTION_END, CALL, ARGUMENT, CALL_END)
_OPENERS = {"user": USER, "assistant": ASSISTANT}


class KimiTemplate:
    """Kimi Linear's format for a tokenizer that has its ten markers."""

    name = "Kimi Linear"
    stop: tuple[str, ...] = ()
    answer_end: str | None = END
    tells_form = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises RequestError, naming the marker, where the tokenizer lacks one."""
        self._tokenizer = tokenizer
        self._markers = {tokenizer.token_id(marker): marker for marker in MARKERS}

    def segments(self, chat: Chat) -> list[Segment]:
        """The conversation as the model reads it. Raises RequestError for what the format cannot say."""
        if chat.response_format is not None and chat.response_format.get("type") != "text":
            raise RequestError("Kimi Linear's format has no place for response_format; ask for it in a message.")
        if chat.tool_choice == "required":
            raise RequestError("Kimi Linear's format has no place for tool_choice=required; ask for it in a message.")
        return list(_segments(chat))

    def reader(self, chat: Chat) -> ReplyReader:
        return KimiReader(self._markers, self._tokenizer)

    def ids(self, chat: Chat, said: Said = NOTHING_SAID) -> list[int]:
        return segment_ids(self._tokenizer, self.segments(chat), said)


def _segments(chat: Chat) -> Iterator[Segment]:
    # a model that is not to call is not told what it could call
    if chat.tools and chat.tool_choice != "none":
        yield from _turn(SYSTEM, "tool_declare", [Segment(compact_json(chat.tools))])
    for at, message in enumerate(chat.messages):
        if message.tools:
            raise RequestError(f"messages[{at}] declares tools; Kimi Linear's format declares them once, before all.")
        opener = _OPENERS.get(message.role, SYSTEM)
        name = message.name or (message.tool if message.role == "tool" else None) or message.role
        yield from _turn(opener, name, list(_body(message, at)))
    if chat.reply:
        yield from (Segment(ASSISTANT, control=True), Segment("assistant"), Segment(MIDDLE, control=True))


def _turn(opener: str, name: str, body: Sequence[Segment]) -> Iterator[Segment]:
    yield from (Segment(opener, control=True), Segment(name), Segment(MIDDLE, control=True))
    yield from body
    yield Segment(END, control=True)


def _body(message: Message, at: int) -> Iterator[Segment]:
    if message.role == "tool":
        if not message.tool_call_id:
            raise RequestError(f"messages[{at}] is a tool's result; give the tool_call_id it answers.")
        yield Segment(f"## Return of {message.tool_call_id}\n")
    yield from (Segment(part) for part in message.parts if part)
    if message.tool_calls:
        yield Segment(SECTION, control=True)
        for index, call in enumerate(message.tool_calls):
            yield Segment(CALL, control=True)
            # the model reads a call's name out of its id
            yield Segment(call.id or f"functions.{call.name}:{index}")
            yield Segment(ARGUMENT, control=True)
            yield from ([Segment(call.arguments)] if call.arguments else [])
            yield Segment(CALL_END, control=True)
        yield Segment(SECTION_END, control=True)


class KimiReader(MarkedReader):
    """A reply: text, then perhaps a section of calls."""

    def __init__(self, markers: dict[int, str], tokenizer: Tokenizer) -> None:
        super().__init__(markers, tokenizer)
        self._place = ""  # the marker whose text is being read
        self._id: list[str] = []
        self._arguments: list[str] = []

    def _text(self, text: str) -> list[ReplyPiece]:
        if self._place == CALL:
            self._id.append(text)
        elif self._place == ARGUMENT:
            self._arguments.append(text)
        elif self._place in ("", SECTION_END) and text:
            return [Content(text)]
        return []

    def _marker(self, marker: str) -> list[ReplyPiece]:
        if marker in (END, SYSTEM, USER, ASSISTANT):
            self._end()
        elif marker == CALL:
            self.unfinished = self.unfinished or self._place in (CALL, ARGUMENT)
            self._place, self._id, self._arguments = CALL, [], []
        elif marker == ARGUMENT and self._place == CALL:
            self._place = ARGUMENT
        elif marker == CALL_END and self._place == ARGUMENT:
            self._place = SECTION
            return [Called(self._call())]
        elif marker in (SECTION, SECTION_END):
            self.unfinished = self.unfinished or self._place in (CALL, ARGUMENT)
            self._place = marker
        return []

    def _call(self) -> ToolCall:
        named, index = "".join(self._id).strip(), self._calls
        self._calls += 1
        name = named.partition(":")[0].removeprefix("functions.")
        return ToolCall(id=named or f"functions.:{index}", name=name, arguments="".join(self._arguments).strip())

    def _end(self) -> None:
        self.done = True
        self.unfinished = self.unfinished or self._place in (CALL, ARGUMENT)
