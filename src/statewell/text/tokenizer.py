"""Tokenizers: what one has to offer, and the one that every small model here is trained with, whose ids are bytes.

A tokenizer is saved with the run it trained: `to_json` goes into the run's config, `files` beside it, so that a run
never depends on where the tokenizer came from. Files are read in `load.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from statewell.errors import DataError, RequestError


@dataclass(frozen=True, kw_only=True)
class Specials:
    """The ids with a part to play around text.

    separator: stands between two documents and before the first. opening: what a prompt of text starts with, often
    nothing. ends: generation is over at any of these. pad: fills rows, None where no file names one.
    """

    separator: int
    opening: tuple[int, ...] = ()
    ends: frozenset[int] = frozenset()
    pad: int | None = None


class Tokenizer(Protocol):
    """What training, generation, chat and checkpoints ask of a tokenizer."""

    @property
    def vocab(self) -> int:
        """Ids are in [0, vocab)."""
        ...

    @property
    def separator(self) -> int:
        """The id that stands between two documents, and before the first."""
        ...

    @property
    def specials(self) -> Specials:
        """The ids with a part to play around text."""
        ...

    @property
    def controls(self) -> Mapping[str, int]:
        """Names and ids of the control tokens: those that no text is ever encoded to."""
        ...

    @property
    def files(self) -> Mapping[str, bytes]:
        """Names and contents of the files that have to lie beside what `to_json` says."""
        ...

    def token_id(self, marker: str) -> int:
        """The id of a control token. Raises RequestError where there is none of that name."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without any separator and without any control token, whatever the text spells."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; bytes that are not UTF-8, such as a character cut in two, read as U+FFFD."""
        ...

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The exact bytes of `ids`, one after the other, for a stream that joins characters across tokens itself.

        A control token gives its name's bytes.
        """
        ...

    def to_json(self) -> dict[str, object]:
        """A JSON object from which, with `files`, `tokenizer_from_json` makes this tokenizer again."""
        ...


@dataclass(frozen=True)
class ByteTokenizer:
    """Each byte of the UTF-8 text is one token: 256 ids, nothing to train, nothing out of vocabulary."""

    specials: Specials = field(default=Specials(separator=0), init=False)  # NUL: text files do not hold one

    @property
    def vocab(self) -> int:
        return 256

    @property
    def separator(self) -> int:
        return self.specials.separator

    @property
    def controls(self) -> Mapping[str, int]:
        return {}

    @property
    def files(self) -> Mapping[str, bytes]:
        return {}

    def token_id(self, marker: str) -> int:
        raise RequestError(f"The byte tokenizer has no control token {marker!r}; it has none at all.")

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of `text`. Raises DataError for half a surrogate pair, which UTF-8 cannot hold."""
        return list(utf8(text))

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


def utf8(text: str) -> bytes:
    """`text` as UTF-8. Raises DataError for half a surrogate pair, which UTF-8 cannot hold."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"The text cannot be written as UTF-8: character {error.start} is half of a surrogate pair "
            f"(U+{ord(text[error.start]):04X}); remove it or replace it."
        ) from error


def control_id(controls: Mapping[str, int], marker: str, where: str) -> int:
    """The id of `marker`. Raises RequestError, saying `where` it is missing."""
    if marker not in controls:
        raise RequestError(f"{where} has no control token {marker!r}, which this format needs; use another tokenizer.")
    return controls[marker]


def joined(pieces: Mapping[int, bytes], ids: Iterable[int], vocab: int) -> bytes:
    """The bytes of `ids` one after the other. Raises RequestError for an id that stands for nothing."""
    ids = list(ids)
    try:
        return b"".join([pieces[i] for i in ids])
    except KeyError as error:
        raise RequestError(
            f"Token id {error.args[0]} is in no vocabulary of this tokenizer, whose ids are 0 to {vocab - 1:,}."
        ) from error
