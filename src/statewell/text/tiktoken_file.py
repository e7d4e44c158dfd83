"""Kimi's tokenizer: a file of byte sequences by rank, a pattern that cuts text first, and 256 reserved ids.

The pattern, the number of reserved ids and the cutting of long text are fixed in the release's own code; here they
are written down, and that code is never run. The names of the reserved ids come from tokenizer_config.json: the same
ranks serve Kimi Linear and Kimi K3, which name them differently. Start at `TiktokenTokenizer.encode`.
Source: spec of the released files, moonshotai/Kimi-Linear-48B-A3B-Instruct and Kimi-K3.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from itertools import groupby

from statewell.errors import CheckpointError
from statewell.text.files import MOST_IDS, TIKTOKEN, TokenizerFiles, parse_object
from statewell.text.guard import guarded
from statewell.text.specials import declared
from statewell.text.tokenizer import Specials, control_id, joined, utf8

RESERVED = 256
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_BEFORE, _AFTER = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        f"{_BEFORE}{_UPPER}*{_LOWER}+{_AFTER}",
        f"{_BEFORE}{_UPPER}+{_LOWER}*{_AFTER}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
# The release cuts text at these many characters, and runs of space or of anything else at those many. A cut decides
# tokens, so it is kept. (The library's pattern engine also gives up on a million spaces.)
PIECE_CHARACTERS, RUN_CHARACTERS = 400_000, 25_000
_LONG_RUN = re.compile(rf"(?<!\s)\s{{{RUN_CHARACTERS + 1}}}|(?<!\S)\S{{{RUN_CHARACTERS + 1}}}")


class TiktokenTokenizer:
    """A tiktoken model file with the names of its reserved ids."""

    def __init__(self, files: TokenizerFiles) -> None:
        """Raises CheckpointError for a malformed file."""
        import tiktoken

        ranks = _read_ranks(files.contents[TIKTOKEN], files.path(TIKTOKEN))
        self._files = files
        self._controls = _reserved_names(files, len(ranks))
        with guarded(lambda error: CheckpointError(f"{files.path(TIKTOKEN)} is refused by tiktoken ({error}).")):
            self._encoding = tiktoken.Encoding(
                "statewell", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=dict(self._controls)
            )
        self._pieces = {rank: token for token, rank in ranks.items()}
        self._pieces |= {number: utf8(name) for name, number in self._controls.items()}
        self.specials = declared(files, self._controls.get, opening=())

    @property
    def vocab(self) -> int:
        return len(self._pieces)

    @property
    def separator(self) -> int:
        return self.specials.separator

    @property
    def controls(self) -> Mapping[str, int]:
        return self._controls

    @property
    def files(self) -> Mapping[str, bytes]:
        return self._files.contents

    def token_id(self, marker: str) -> int:
        return control_id(self._controls, marker, self._files.where)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; reserved names in it are text like any other."""
        utf8(text)  # the library would write half a surrogate pair as U+FFFD
        return [number for piece in _pieces(text) for number in self._encoding.encode_ordinary(piece)]

    def decode(self, ids: Iterable[int]) -> str:
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return joined(self._pieces, ids, self.vocab)

    def to_json(self) -> dict[str, object]:
        return self._files.to_json(self.specials)

    def with_specials(self, specials: Specials) -> TiktokenTokenizer:
        """The same tokenizer with these special ids."""
        other = copy(self)
        other.specials = specials
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TiktokenTokenizer) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(tuple(self._controls))


def _read_ranks(content: bytes, path: str) -> dict[bytes, int]:
    """Byte sequences by rank: lines of base64, a space, and ranks 0, 1, 2 and so on in any order."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line:
            continue
        encoded, _, rank = line.partition(b" ")
        try:
            token = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            token = b""
        if not token or token in ranks or not rank.isdigit() or len(rank) > 8:
            raise CheckpointError(
                f"{path} line {number} is not base64 of a new token, a space and its rank; use another copy."
            )
        ranks[token] = int(rank)
    if sorted(ranks.values()) != list(range(len(ranks))) or len(ranks) + RESERVED > MOST_IDS:
        raise CheckpointError(f"{path} does not rank its {len(ranks):,} tokens 0, 1, 2 and so on; use another copy.")
    for byte in range(256):
        if bytes([byte]) not in ranks:  # else some text could not be written at all
            raise CheckpointError(f"{path} has no token for the single byte {byte}; use another copy.")
    return ranks


def _reserved_names(files: TokenizerFiles, first: int) -> dict[str, int]:
    """Names of the ids from `first` on: those of added_tokens_decoder, `<|reserved_token_ID|>` for the others."""
    names = {number: f"<|reserved_token_{number}|>" for number in range(first, first + RESERVED)}
    config = "tokenizer_config.json"
    document = parse_object(files.contents[config], files.path(config)) if config in files.contents else {}
    added = document.get("added_tokens_decoder", {})
    if not isinstance(added, dict):
        raise CheckpointError(f"{files.path(config)}: added_tokens_decoder is not an object; use another copy.")
    for key, entry in added.items():
        name = entry.get("content") if isinstance(entry, dict) else None
        if not (key.isascii() and key.isdigit() and len(key) <= 8 and int(key) in names):
            raise CheckpointError(
                f"{files.path(config)}: added_tokens_decoder has the id {key!r}; reserved ids here are {first:,} to "
                f"{first + RESERVED - 1:,}: the file belongs to another {TIKTOKEN}."
            )
        if not isinstance(name, str) or not name or not _writable(name):
            raise CheckpointError(f"{files.path(config)}: added_tokens_decoder[{key}] has no name; use another copy.")
        names[int(key)] = name
    if len(set(names.values())) < len(names):
        raise CheckpointError(f"{files.path(config)}: added_tokens_decoder gives one name to two ids.")
    return {name: number for number, name in names.items()}


def _writable(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _pieces(text: str) -> Iterator[str]:
    """`text` cut as the release cuts it."""
    for start in range(0, len(text), PIECE_CHARACTERS):
        piece = text[start : start + PIECE_CHARACTERS]
        yield from _cut_runs(piece) if _LONG_RUN.search(piece) else (piece,)


def _cut_runs(text: str) -> Iterator[str]:
    """Cut where a run of whitespace, or of no whitespace, has RUN_CHARACTERS; the rest stays whole."""
    start = position = 0
    for _, run in groupby(text, str.isspace):
        end = position + sum(1 for _ in run)
        while end - position > RUN_CHARACTERS:
            position += RUN_CHARACTERS
            yield text[start:position]
            start = position
        position = end
    if start < len(text):
        yield text[start:]
