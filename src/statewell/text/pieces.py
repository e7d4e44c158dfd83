"""The bytes of single tokens, as the `decoder` of a tokenizer.json would join them.

Joining token by token is what makes streams exact: a token's bytes never depend on its neighbours. Decoders for which
they do (WordPiece puts spaces between) are refused. Start at `piece_rule`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from statewell.errors import CheckpointError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class PieceRule:
    """to_bytes: a vocabulary entry's bytes. leading: how many spaces at the very start are not part of the text."""

    to_bytes: Callable[[str], bytes]
    leading: int


def piece_rule(decoder: object, path: str) -> PieceRule:
    """The rule that a tokenizer.json's `decoder` stands for. Raises CheckpointError, naming it, for one not offered."""
    steps = _flat(decoder, path)
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        if set(kinds) - {"ByteLevel", "Fuse"}:
            raise _unknown(decoder, path)
        return PieceRule(byte_level, 0)
    replaced: list[tuple[str, str]] = []
    leading, fallback, fused = 0, False, False
    for kind, step in zip(kinds, steps, strict=True):
        if kind == "Replace":
            replaced.append(_replacement(step, decoder, path))
        elif kind == "Metaspace":
            replaced.append((str(step.get("replacement")), " "))
            leading = 0 if step.get("prepend_scheme") == "never" or step.get("add_prefix_space") is False else 1
        elif kind == "ByteFallback":
            fallback = True
        elif kind == "Fuse":
            fused = True
        elif kind == "Strip" and fused and step.get("content") == " " and step.get("stop") == 0:
            leading = _count(step.get("start"), decoder, path)
        else:
            raise _unknown(decoder, path)
    return PieceRule(_replacing(tuple(replaced), fallback), leading)


def byte_level(token: str) -> bytes:
    """The bytes that GPT-2's letters for bytes spell; a token with any other letter is itself, in UTF-8."""
    try:
        return bytes([_LETTERS[letter] for letter in token])
    except KeyError:
        return token.encode("utf-8", errors="replace")


def _letters() -> dict[str, int]:
    """GPT-2's letter for each byte: the byte's own character where that is visible, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + at): byte for at, byte in enumerate(hidden)}


_LETTERS = _letters()


def _replacing(replaced: tuple[tuple[str, str], ...], fallback: bool) -> Callable[[str], bytes]:
    def to_bytes(token: str) -> bytes:
        if fallback and (byte := _BYTE.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        for old, new in replaced:
            token = token.replace(old, new)
        return token.encode("utf-8", errors="replace")

    return to_bytes


def _flat(decoder: object, path: str) -> list[Mapping[str, object]]:
    if not isinstance(decoder, dict):
        raise _unknown(decoder, path)
    step = cast(Mapping[str, object], decoder)
    if step.get("type") != "Sequence":
        return [step]
    inner = step.get("decoders")
    if not isinstance(inner, list) or not inner or not all(isinstance(each, dict) for each in inner):
        raise _unknown(decoder, path)
    return inner


def _replacement(step: Mapping[str, object], decoder: object, path: str) -> tuple[str, str]:
    pattern, content = step.get("pattern"), step.get("content")
    old = pattern.get("String") if isinstance(pattern, dict) else None
    if not isinstance(old, str) or not old or not isinstance(content, str):
        raise _unknown(decoder, path)
    return old, content


def _count(value: object, decoder: object, path: str) -> int:
    if type(value) is not int or not 0 <= value <= 16:
        raise _unknown(decoder, path)
    return value


def _unknown(decoder: object, path: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: its decoder, {str(decoder)[:120]}, does not give each token its own bytes; "
        "ByteLevel, Metaspace, and Replace with ByteFallback are offered."
    )
