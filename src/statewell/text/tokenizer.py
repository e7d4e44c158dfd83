"""Tokenizers: what one has to offer, and the one that every small model here is trained with, whose ids are
bytes.

A tokenizer is saved inside the run it trained (`to_json`), so that a run never depends on a file beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from statewell.errors import CheckpointError, DataError, RequestError, nearest


class Tokenizer(Protocol):
    """What training, generation and checkpoints ask of a tokenizer."""

    @property
    def vocab(self) -> int:
        """Ids are in [0, vocab)."""
        ...

    @property
    def separator(self) -> int:
        """The id that stands between two documents, and before the first."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without any separator."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; bytes that are not UTF-8, such as a character cut in two, read as U+FFFD."""
        ...

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The exact bytes of `ids`, for a stream that joins characters across tokens itself."""
        ...

    def to_json(self) -> dict[str, object]:
        """A JSON object from which `tokenizer_from_json` makes this tokenizer again."""
        ...


@dataclass(frozen=True)
class ByteTokenizer:
    """Each byte of the UTF-8 text is one token: 256 ids, nothing to train, nothing out of vocabulary."""

    @property
    def vocab(self) -> int:
        return 256

    @property
    def separator(self) -> int:
        return 0  # NUL: text files do not hold one

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of `text`. Raises DataError for half a surrogate pair, which UTF-8 cannot hold."""
        try:
            return list(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise DataError(
                f"The text cannot be written as UTF-8: character {error.start} is half of a surrogate pair "
                f"(U+{ord(text[error.start]):04X}); remove it or replace it."
            ) from error

    def decode(self, ids: Iterable[int]) -> str:
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes themselves. Raises RequestError for an id outside 0 to 255."""
        ids = list(ids)
        try:
            return bytes(ids)
        except ValueError as error:
            wrong = next(i for i in ids if not 0 <= i < 256)
            raise RequestError(f"Token id {wrong} is not a byte; ids are 0 to 255.") from error

    def to_json(self) -> dict[str, object]:
        return {"kind": "bytes"}


_KINDS = {"bytes": ByteTokenizer}


def tokenizer_from_json(document: Mapping[str, object]) -> Tokenizer:
    """The tokenizer `to_json` described. Raises CheckpointError for a kind this version does not know."""
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise CheckpointError(f"Unknown tokenizer kind {kind!r}: {nearest(str(kind), _KINDS)}")
    return _KINDS[kind]()
