"""Conversations: what is said, what a template is, and the ids it makes.

A template turns a conversation into segments, each either one control token or plain text, and every text is encoded
by itself with control tokens out of its reach: whatever a user writes, the model sees the markers that the template
set and no others. No template that comes with a checkpoint is run. The templates are `xtml.py` (Kimi K3),
`kimi_chat.py` (Kimi Linear) and `plain_chat.py` (models without one); `templates.py` chooses. Replies are read in
`reply.py`. Start at `chat_from_json` or `ChatTemplate`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from statewell.errors import RequestError
from statewell.text.reply import ReplyReader, ToolCall
from statewell.text.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, kw_only=True)
class Message:
    """One turn. parts: its text, usually one. reasoning: what the assistant thought before it.

    tool_call_id, tool: of a tool's result, which call it answers, or the tool's own name. tools: what a system message
    declares in the middle of a conversation.
    """

    role: str
    parts: tuple[str, ...] = ()
    name: str | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    tool: str | None = None
    tools: tuple[Mapping[str, object], ...] = ()

    @property
    def content(self) -> str:
        """The text of all parts."""
        return "".join(self.parts)


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A conversation and how to go on with it.

    tools: JSON objects as OpenAI's API has them. tool_choice: "auto", "none" or "required". thinking: the model may
    reason first, where its format has a place for it; thinking_effort says how much. reply: end with the beginning of
    the assistant's turn.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, object], ...] = ()
    tool_choice: str = "auto"
    response_format: Mapping[str, object] | None = None
    thinking: bool = True
    thinking_effort: str | None = None
    reply: bool = True


Said = Mapping[str, Sequence[int]]  # texts and the tokens they were said in
NOTHING_SAID: Said = {}


@dataclass(frozen=True)
class Segment:
    """text: a control token's name, or text that is encoded by itself."""

    text: str
    control: bool = False


class ChatTemplate(Protocol):
    """A chat format bound to a tokenizer that was found to have all its markers."""

    @property
    def name(self) -> str:
        """What people call the format."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts before which a reply is over, for formats without control tokens."""
        ...

    @property
    def answer_end(self) -> str | None:
        """The control token that follows an answer's text, None for formats without one."""
        ...

    @property
    def tells_form(self) -> bool:
        """Whether it can tell the model what `response_format` asks for."""
        ...

    def segments(self, chat: Chat) -> list[Segment]:
        """The conversation as the model reads it. Raises RequestError for what this format cannot say."""
        ...

    def reader(self, chat: Chat) -> ReplyReader:
        """What reads the reply to `chat`, token by token."""
        ...

    def ids(self, chat: Chat, said: Said = NOTHING_SAID) -> list[int]:
        """`segments` as token ids; texts in `said` keep the tokens they were said in."""
        ...


def segment_ids(tokenizer: Tokenizer, segments: Iterable[Segment], said: Said = NOTHING_SAID) -> list[int]:
    """Ids of `segments`: control tokens by name, every text by itself, or as it is in `said`."""
    ids: list[int] = []
    for segment in segments:
        known = None if segment.control else said.get(segment.text)
        if known is not None:
            ids += known
        else:
            ids += [tokenizer.token_id(segment.text)] if segment.control else tokenizer.encode(segment.text)
    return ids


def texts_said(tokenizer: Tokenizer, ids: Iterable[int]) -> Said:
    """Every text between two control tokens of `ids`, with its tokens there.

    A model may say a text in other tokens than `encode` gives; only in the same ones is its memory of use again.
    """
    controls, runs = frozenset(tokenizer.controls.values()), [[]]
    for token in ids:
        if token in controls:
            runs.append([])
        else:
            runs[-1].append(token)
    return {tokenizer.decode(run): tuple(run) for run in runs if run}


def chat_from_json(document: Mapping[str, object]) -> Chat:
    """A conversation from the JSON of a request, fields named as in OpenAI's API.

    `thinking`, `thinking_effort` and `add_generation_prompt` are read too, and a message's `reasoning_content` or
    `reasoning`. Raises RequestError, naming the field, for what is malformed or no text.
    """
    messages = _list(document.get("messages"), "messages")
    if document.get("image_prompts"):
        raise RequestError("image_prompts is given; only text is read, no images.")
    choice = document.get("tool_choice") or "auto"
    if choice not in ("auto", "none", "required"):
        raise RequestError(f"tool_choice is {choice!r}, it must be auto, none or required.")
    form = document.get("response_format")
    return Chat(
        messages=tuple(_message(each, f"messages[{at}]") for at, each in enumerate(messages)),
        tools=_tools(document.get("tools"), "tools"),
        tool_choice=cast(str, choice),
        response_format=None if form is None else _object(form, "response_format"),
        thinking=_flag(document, "thinking"),
        thinking_effort=_text_or_none(document, "thinking_effort", "thinking_effort"),
        reply=_flag(document, "add_generation_prompt"),
    )


def compact_json(value: object, sort: bool = False) -> str:
    """JSON without spaces, letters as they are. sort: keys in order, at every depth."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort)


def _message(value: object, path: str) -> Message:
    fields = _object(value, path)
    role = fields.get("role")
    if role not in ROLES:
        raise RequestError(f"{path}.role is {role!r}, it must be one of {', '.join(ROLES)}.")
    calls = _list(fields.get("tool_calls") or [], f"{path}.tool_calls")
    reasoning = _text_or_none(fields, "reasoning_content", path) or _text_or_none(fields, "reasoning", path)
    return Message(
        role=cast(str, role),
        parts=_parts(fields.get("content"), f"{path}.content"),
        name=_text_or_none(fields, "name", path),
        reasoning=reasoning or "",
        tool_calls=tuple(_tool_call(each, f"{path}.tool_calls[{at}]") for at, each in enumerate(calls)),
        tool_call_id=_text_or_none(fields, "tool_call_id", path),
        tool=_text_or_none(fields, "tool", path),
        tools=_tools(fields.get("tools"), f"{path}.tools"),
    )


def _parts(value: object, path: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,) if value else ()
    parts: list[str] = []
    for at, each in enumerate(_list(value, path)):
        fields = _object(each, f"{path}[{at}]")
        text = fields.get("text")
        if fields.get("type") != "text" or not isinstance(text, str):
            raise RequestError(f"{path}[{at}] is of type {fields.get('type')!r}; only text is read, no images.")
        parts += [text] if text else []
    return tuple(parts)


def _tool_call(value: object, path: str) -> ToolCall:
    fields = _object(value, path)
    function = _object(fields.get("function"), f"{path}.function")
    name, arguments = _text_or_none(function, "name", f"{path}.function"), function.get("arguments")
    if not name:
        raise RequestError(f"{path}.function.name is missing; a call names its tool.")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id=_text_or_none(fields, "id", path) or "", name=name, arguments=arguments)


def _tools(value: object, path: str) -> tuple[Mapping[str, object], ...]:
    return tuple(_object(each, f"{path}[{at}]") for at, each in enumerate(_list(value or [], path)))


def _object(value: object, path: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise RequestError(f"{path} is {type(value).__name__}, it must be an object.")
    return value


def _list(value: object, path: str) -> Sequence[object]:
    if not isinstance(value, list):
        raise RequestError(f"{path} is {type(value).__name__}, it must be a list.")
    return value


def _text_or_none(fields: Mapping[str, object], key: str, path: str) -> str | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise RequestError(f"{path}.{key} is {type(value).__name__}, it must be text.")
    return value


def _flag(fields: Mapping[str, object], key: str) -> bool:
    value = fields.get(key, True)
    if not isinstance(value, bool):
        raise RequestError(f"{key} is {value!r}, it must be true or false.")
    return value
