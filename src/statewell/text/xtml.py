"""Kimi K3's chat format: nested elements whose angle brackets are control tokens (XTML).

`<|open|>tag key="value"<|sep|> ... <|close|>tag<|sep|>`; a message is an element and ends with `<|end_of_msg|>`. The
release makes it by code, not by a template; the segments here are cut as that code cuts them, since each is encoded by
itself. Start at `XTMLTemplate.segments`; `xtml_reply.py` reads replies.
Source: the format's description in the K3 report's appendix and request-to-prompt pairs made with the release's
encoder (revision c5d1dd4c), with which every case was compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from statewell.errors import RequestError
from statewell.text.chat import NOTHING_SAID, Chat, Message, Said, Segment, compact_json, segment_ids
from statewell.text.reply import ReplyReader, ToolCall
from statewell.text.tokenizer import Tokenizer
from statewell.text.xtml_reply import CLOSE, END, OPEN, SEP, XTMLReader

MARKERS = (OPEN, CLOSE, SEP, END)
EFFORTS = ("low", "medium", "high", "max")

_TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{tools}\n```"
_MORE_TOOLS = (
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n"
    "```json\n{tools}\n```"
)
_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={effort}`."
)
_CHOICES = {
    "required": "You MUST call tools in the next message.",
    "none": "You MUST NOT call any tools in the next message.",
}
_CHOICE = "The system is invoked with `tool_choice={choice}`.\n{order}"
_FORMAT = (
    "The system is invoked with `response_format={kind}`.\nYour response must be raw JSON data without markdown code "
    "blocks (```json) or any additional formatting."
)
_SCHEMA = "\nThe JSON data must match the following schema:\n```json\n{schema}\n```"

Attributes = Sequence[tuple[str, str]]


class XTMLTemplate:
    """K3's format for a tokenizer that has its four markers."""

    name = "Kimi K3 (XTML)"
    stop: tuple[str, ...] = ()
    answer_end: str | None = CLOSE
    tells_form = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises RequestError, naming the marker, where the tokenizer lacks one."""
        self._tokenizer = tokenizer
        self._markers = {tokenizer.token_id(marker): marker for marker in MARKERS}

    def segments(self, chat: Chat) -> list[Segment]:
        """The conversation as the model reads it. Raises RequestError for what the format cannot say."""
        return list(_segments(chat))

    def reader(self, chat: Chat) -> ReplyReader:
        inside = "think" if chat.thinking else "response"
        return XTMLReader(self._markers, self._tokenizer, inside)

    def ids(self, chat: Chat, said: Said = NOTHING_SAID) -> list[int]:
        return segment_ids(self._tokenizer, self.segments(chat), said)


def _segments(chat: Chat) -> Iterator[Segment]:
    if chat.tools:
        yield from _system("tool-declare", _TOOLS.format(tools=compact_json(chat.tools, sort=True)))
    if chat.thinking and chat.thinking_effort is not None:
        if chat.thinking_effort not in EFFORTS:
            raise RequestError(f"thinking_effort is {chat.thinking_effort!r}, it must be one of {', '.join(EFFORTS)}.")
        yield from _system("thinking-effort", _EFFORT.format(effort=chat.thinking_effort))
    for message, attributes in _ordered(chat.messages):
        yield from _message(message, attributes, chat.thinking)
    if chat.tool_choice != "auto":
        yield from _system("tool-choice", _CHOICE.format(choice=chat.tool_choice, order=_CHOICES[chat.tool_choice]))
    if chat.response_format is not None and chat.response_format.get("type") != "text":
        yield from _system("response-format", _format_text(chat.response_format))
    if chat.reply:
        yield from _open("message", [("role", "assistant")])
        yield from _open("think" if chat.thinking else "response")


def _ordered(messages: Sequence[Message]) -> Iterator[tuple[Message, Attributes]]:
    """Each message with its attributes; results of tools in the order of the calls they answer, when all do."""
    calls: tuple[ToolCall, ...] = ()
    at = 0
    while at < len(messages):
        message = messages[at]
        if message.role == "tool":
            end = next((i for i in range(at, len(messages)) if messages[i].role != "tool"), len(messages))
            yield from _results(messages[at:end], calls, at)
            at = end
            continue
        calls = message.tool_calls
        name = [] if message.name is None else [("name", message.name)]
        yield message, [("role", message.role), *name]
        at += 1


def _results(
    results: Sequence[Message], calls: tuple[ToolCall, ...], first: int
) -> Iterator[tuple[Message, Attributes]]:
    places = {call.id: place for place, call in enumerate(calls) if call.id}
    numbered = [(places.get(result.tool_call_id or ""), result) for result in results]
    if all(place is not None for place, _ in numbered):
        numbered.sort(key=lambda pair: pair[0] or 0)
    for position, (place, result) in enumerate(numbered):
        place = position if place is None else place
        tool = result.tool or (calls[place].name if place < len(calls) else result.name)
        if tool is None:
            raise RequestError(
                f"messages[{first + position}] is a tool's result and answers no call before it; give its tool_call_id."
            )
        yield result, [("role", "tool"), ("tool", tool), ("index", str(place + 1))]


def _message(message: Message, attributes: Attributes, thinking: bool) -> Iterator[Segment]:
    if message.tools:
        if message.parts or message.role != "system":
            raise RequestError("A message that declares tools must be a system message and say nothing else.")
        yield from _system("tool-declare", _MORE_TOOLS.format(tools=compact_json(message.tools, sort=True)))
        return
    yield from _open("message", attributes)
    if message.role == "assistant":
        if thinking:
            yield from _element("think", [], [message.reasoning])
        yield from _element("response", [], message.parts)
        if message.tool_calls:
            yield from _open("tools")
            for index, call in enumerate(message.tool_calls, 1):
                yield from _open("call", [("tool", call.name), ("index", str(index))])
                yield from _arguments(call.arguments)
                yield from _close("call")
            yield from _close("tools")
    else:
        yield from _texts(message.parts)
    yield from _close("message")
    yield Segment(END, control=True)


def _arguments(text: str) -> Iterator[Segment]:
    """One element for each argument; what is no JSON object stays as it is."""
    if not text.strip():
        return
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        yield from _element("json", [("type", "object")], [text])
        return
    for key, value in arguments.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield from _element("argument", [("key", key), ("type", _kind(value))], [written])


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "number", float: "number", dict: "object", list: "array"}
    return kinds.get(type(value), "null")


def _format_text(form: Mapping[str, object]) -> str:
    kind = form.get("type")
    if kind == "json_object":
        return _FORMAT.format(kind=kind)
    schema = form.get("json_schema")
    if kind != "json_schema" or not isinstance(schema, Mapping):
        raise RequestError(f"response_format is of type {kind!r}, it must be text, json_object or json_schema.")
    return _FORMAT.format(kind=kind) + _SCHEMA.format(schema=compact_json(schema.get("schema", schema), sort=True))


def _system(kind: str, text: str) -> Iterator[Segment]:
    yield from _element("message", [("role", "system"), ("type", kind)], [text])
    yield Segment(END, control=True)


def _element(tag: str, attributes: Attributes, texts: Sequence[str]) -> Iterator[Segment]:
    yield from _open(tag, attributes)
    yield from _texts(texts)
    yield from _close(tag)


def _open(tag: str, attributes: Attributes = ()) -> Iterator[Segment]:
    yield Segment(OPEN, control=True)
    yield Segment(tag)
    for key, value in attributes:
        escaped = value.replace("&", "&amp;").replace('"', "&quot;")
        yield from (Segment(f" {key}"), Segment('="'), *_texts([escaped]), Segment('"'))
    yield Segment(SEP, control=True)


def _close(tag: str) -> Iterator[Segment]:
    yield from (Segment(CLOSE, control=True), Segment(tag), Segment(SEP, control=True))


def _texts(texts: Sequence[str]) -> Iterator[Segment]:
    yield from (Segment(text) for text in texts if text)
