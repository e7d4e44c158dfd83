"""A reply in Kimi K3's format, taken apart while it comes.

The prompt has opened the assistant's message and its `think` or `response`; the reply goes on from inside. Start at
`XTMLReader.push`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from statewell.text.reply import Called, Content, MarkedReader, Reasoning, ReplyPiece, ToolCall
from statewell.text.tokenizer import Tokenizer

OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
_ATTRIBUTE = re.compile(r'([^\s="]+)="([^"]*)"')


@dataclass
class _Element:
    """An open element. written: the pieces of an argument. arguments, raw: of a call, what its children held."""

    tag: str
    attributes: Mapping[str, str]
    written: list[str] = field(default_factory=list)
    arguments: dict[str, object] = field(default_factory=dict)
    raw: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.written)


class XTMLReader(MarkedReader):
    """Elements as a stack; text goes where the innermost one says."""

    def __init__(self, markers: Mapping[int, str], tokenizer: Tokenizer, inside: str) -> None:
        """markers: ids of the four control tokens. inside: the element that the prompt left open."""
        super().__init__(markers, tokenizer)
        self._stack = [_Element("message", {}), _Element(inside, {})]
        self._header: list[str] | None = None  # of a tag being read: its pieces so far
        self._closing = False

    def _marker(self, marker: str) -> list[ReplyPiece]:
        if marker == END:
            self._end()
        elif marker in (OPEN, CLOSE):
            self._header, self._closing = [], marker == CLOSE
        elif self._header is not None:
            header, self._header = "".join(self._header), None
            if self._closing:
                return self._close(header.strip())
            tag = header.split(maxsplit=1)[0] if header.strip() else ""
            found = _ATTRIBUTE.findall(header)
            self._stack.append(_Element(tag, {key: _unescaped(value) for key, value in found}))
        return []

    def _text(self, text: str) -> list[ReplyPiece]:
        if not text:
            return []
        if self._header is not None:
            self._header.append(text)
            return []
        inner = self._stack[-1] if self._stack else _Element("message", {})
        if inner.tag == "think":
            return [Reasoning(text)]
        if inner.tag in ("response", "message"):
            return [Content(text)]
        inner.written.append(text)
        return []

    def _close(self, tag: str) -> list[ReplyPiece]:
        """Close the innermost element of that name and all inside it; a name that is not open closes nothing."""
        places = [at for at, element in enumerate(self._stack) if element.tag == tag]
        if not places:
            return []
        element = self._stack[places[-1]]
        cut_off = any(inner.tag == "call" for inner in self._stack[places[-1] + 1 :])
        self.unfinished = self.unfinished or cut_off
        del self._stack[places[-1] :]
        call = next((outer for outer in reversed(self._stack) if outer.tag == "call"), None)
        if tag == "call":
            return [Called(self._call(element))]
        if call is not None and tag == "argument":
            call.arguments[element.attributes.get("key", "")] = _value(element)
        elif call is not None and tag == "json":
            call.raw = element.text
        return []

    def _call(self, element: _Element) -> ToolCall:
        arguments = json.dumps(element.arguments, ensure_ascii=False) if element.raw is None else element.raw
        name, index = element.attributes.get("tool", ""), self._calls
        self._calls += 1
        return ToolCall(id=f"{name}:{index}", name=name, arguments=arguments)

    def _end(self) -> None:
        self.done = True
        self.unfinished = self.unfinished or any(element.tag == "call" for element in self._stack)


def _value(element: _Element) -> object:
    """An argument's value: text as it is, anything else as JSON, or as text where it is none."""
    if element.attributes.get("type", "string") == "string":
        return element.text
    try:
        return json.loads(element.text)
    except (ValueError, RecursionError):
        return element.text


def _unescaped(value: str) -> str:
    return value.replace("&quot;", '"').replace("&amp;", "&")
