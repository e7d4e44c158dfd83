"""Tokenizers of the `tokenizers` library: a tokenizer.json, or GPT-2's vocab.json with merges.txt.

The library encodes; bytes come from our own table of single tokens (`pieces.py`), so that a stream of tokens joins
exactly. Two things the library would do are kept from it: to read control tokens out of plain text, and to pad, cut
or drop at random. Start at `HuggingFaceTokenizer.encode`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from copy import copy
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from statewell.errors import CheckpointError, DataError
from statewell.text.files import MERGES, MOST_IDS, TOKENIZER_JSON, VOCAB, TokenizerFiles, parse_object
from statewell.text.guard import guarded
from statewell.text.pieces import piece_rule
from statewell.text.specials import CONFIG, END_NAMES, declared, named_tokens
from statewell.text.tokenizer import Specials, control_id, joined, utf8

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Library


class HuggingFaceTokenizer:
    """A tokenizer.json, or vocab.json with merges.txt, with the names beside it.

    Control tokens are the added tokens marked special and the named ones, and added tokens in angle or square brackets
    even where they are not marked: Kimi's and Qwen's templates are built of such. The unknown token is none: text may
    well be unknown.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        """Raises CheckpointError for a file that is malformed or asks for what is not offered."""
        document = _document(files)
        self._files = files
        self._library = _open(document, files)
        ids = self._library.get_vocab(with_added_tokens=True)
        if not ids or max(ids.values()) >= MOST_IDS:
            raise CheckpointError(f"{files.where}: a vocabulary has 1 to {MOST_IDS:,} ids; use another copy.")
        self._vocab = max(ids.values()) + 1
        added = _added(document, ids, files)
        self._controls = _controls(document, added, ids, files)
        self._control_ids = frozenset(self._controls.values())
        rule = piece_rule(document.get("decoder"), files.path(files.main))
        self._leading = rule.leading
        self._pieces = {number: rule.to_bytes(token) for token, number in ids.items()}
        self._pieces |= {ids[name]: name.encode("utf-8", errors="replace") for name in added | self._controls.keys()}
        self.specials = declared(files, ids.get, self._opening())

    @property
    def vocab(self) -> int:
        return self._vocab

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
        """The ids of `text`; names of control tokens in it are text like any other.

        Raises DataError for text that the tokenizer's own rules do not take.
        """
        utf8(text)
        ids: list[int] = []
        pending = [text]
        while pending:
            piece = pending.pop()
            encoding = self._encode(piece)
            if self._control_ids.isdisjoint(encoding.ids):
                ids += encoding.ids
            else:
                # Cut inside each name, so that no piece spells it. Last piece first: they are taken from the end.
                pending += reversed(_cut(piece, self._names_in(encoding.ids, encoding.offsets)))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        text = self.decode_bytes(ids).decode("utf-8", errors="replace")
        spaces = len(text) - len(text.lstrip(" "))
        return text[min(spaces, self._leading) :]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return joined(self._pieces, ids, self._vocab)

    def to_json(self) -> dict[str, object]:
        return self._files.to_json(self.specials)

    def with_specials(self, specials: Specials) -> HuggingFaceTokenizer:
        """The same tokenizer with these special ids."""
        other = copy(self)
        other.specials = specials
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HuggingFaceTokenizer) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self._files.kind, self._vocab))

    def _encode(self, text: str, special: bool = False) -> Encoding:
        where = self._files.where
        with guarded(lambda error: DataError(f"{where}: the tokenizer does not take this text ({error}).")):
            return self._library.encode(text, add_special_tokens=special)

    def _names_in(self, ids: list[int], offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
        spans = [span for number, span in zip(ids, offsets, strict=True) if number in self._control_ids]
        if any(end - start < 2 for start, end in spans):
            raise DataError(
                f"{self._files.where}: one character of the text is a control token to this tokenizer; leave it out."
            )
        return spans

    def _opening(self) -> tuple[int, ...]:
        """What the file's own rules put before a text."""
        try:
            plain, whole = self._encode("a").ids, self._encode("a", special=True).ids
        except DataError as error:
            raise CheckpointError(f"{error} Not even the letter a; use another copy.") from error
        for start in range(len(whole) - len(plain) + 1):
            if plain and whole[start : start + len(plain)] == plain:
                return tuple(whole[:start])
        return ()


def _cut(text: str, spans: list[tuple[int, int]]) -> list[str]:
    places = [0, *(start + 1 for start, _ in spans), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def _open(document: dict[str, object], files: TokenizerFiles) -> Library:
    from tokenizers import Tokenizer as Library

    path = files.path(files.main)
    with guarded(
        lambda error: CheckpointError(
            f"{path} is not a tokenizer that the tokenizers library reads ({error}); use another copy."
        )
    ):
        library = Library.from_str(json.dumps(document))
    library.encode_special_tokens = True
    return library


def _document(files: TokenizerFiles) -> dict[str, object]:
    """The tokenizer.json, or the one that vocab.json and merges.txt stand for, with nothing of chance or of length."""
    if files.main == VOCAB:
        return _from_vocab_and_merges(files)
    document = parse_object(files.contents[TOKENIZER_JSON], files.path(TOKENIZER_JSON))
    model = document.get("model")
    # A padding to a fixed length could ask for any memory, dropout would encode one text in many ways.
    if isinstance(model, dict) and "dropout" in model:
        document["model"] = {**model, "dropout": None}
    return {**document, "padding": None, "truncation": None}


def _from_vocab_and_merges(files: TokenizerFiles) -> dict[str, object]:
    vocab = parse_object(files.contents[VOCAB], files.path(VOCAB))
    try:
        lines = files.contents[MERGES].decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{files.path(MERGES)} is not UTF-8 ({error}); use another copy.") from error
    merges = [line.rstrip("\r") for line in lines if line.strip() and not line.startswith("#version")]
    for line in merges:
        left, space, right = line.partition(" ")
        if not space or " " in right or not {left, right, left + right} <= vocab.keys():
            raise CheckpointError(
                f"{files.path(MERGES)}: {line[:60]!r} does not join two tokens of {VOCAB} to a third; "
                "the two files are not of one tokenizer."
            )
    names = {*END_NAMES, *named_tokens(files).values()} & vocab.keys()
    config = parse_object(files.contents[CONFIG], files.path(CONFIG)) if CONFIG in files.contents else {}
    return {
        "version": "1.0",
        "added_tokens": [_special(name, vocab[name]) for name in sorted(names)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": config.get("add_prefix_space") is True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
        "padding": None,
        "truncation": None,
    }


def _special(name: str, number: object) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": name, **flags}


def _added(document: dict[str, object], ids: dict[str, int], files: TokenizerFiles) -> set[str]:
    """The added tokens' names. Raises CheckpointError for one whose id the vocabulary does not confirm."""
    names: set[str] = set()
    # the library has read the list by now, so its entries are as they should be
    for entry in cast(list[dict[str, object]], document.get("added_tokens") or []):
        name = cast(str, entry["content"])
        if not name:  # the library passes over these
            continue
        if ids.get(name) != entry["id"]:
            raise CheckpointError(
                f"{files.path(files.main)}: the added token {name!r} has id {entry['id']}, but the vocabulary "
                f"gives it {ids.get(name)}; use another copy."
            )
        names.add(name)
    return names


def _controls(
    document: dict[str, object], added: set[str], ids: dict[str, int], files: TokenizerFiles
) -> dict[str, int]:
    named = named_tokens(files)
    parts = {named[part] for part in ("bos", "eos", "pad") if part in named}
    if "eos" not in named:
        parts |= set(END_NAMES)
    entries = cast(list[dict[str, object]], document.get("added_tokens") or [])
    marked = {str(entry["content"]) for entry in entries if entry["special"] or _bracketed(str(entry["content"]))}
    unknown = {named.get("unk"), cast(dict[str, object], document["model"]).get("unk_token")} - parts
    return {name: ids[name] for name in sorted((marked & added) | parts) if name in ids and name not in unknown}


def _bracketed(name: str) -> bool:
    return len(name) > 2 and (name[0], name[-1]) in (("<", ">"), ("[", "]"))
