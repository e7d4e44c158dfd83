"""The front door to tokenizers: from a checkpoint's folder, or from what a run kept.

The files in the folder decide what is read, never its name. Start at `load_tokenizer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from statewell.errors import CheckpointError, nearest
from statewell.text.files import (
    BESIDE,
    MERGES,
    SOURCES,
    TOKENIZER_JSON,
    VOCAB,
    TokenizerFiles,
    kept_files,
    parse_object,
    read_file,
)
from statewell.text.huggingface import HuggingFaceTokenizer
from statewell.text.specials import config_ends, require_fit, specials_from_json
from statewell.text.tiktoken_file import TiktokenTokenizer
from statewell.text.tokenizer import ByteTokenizer, Tokenizer

CONFIG, GENERATION = "config.json", "generation_config.json"
# A folder may hold several: the released ranks before a conversion of them, one whole file before two.
_ORDER = ("tiktoken", "huggingface", "vocab_and_merges")


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer whose files lie in `folder`: tiktoken.model, tokenizer.json, or vocab.json with merges.txt.

    None where there is none of them. The special ids and the vocabulary are held against config.json, and generation
    ends where it or generation_config.json says. Raises CheckpointError, naming the file and the way out, for files
    that are malformed, incomplete or not of this model.
    """
    kind = _kind(folder)
    if kind is None:
        return None
    names = [name for name in (*SOURCES[kind], *BESIDE) if (folder / name).is_file()]
    tokenizer = _open(TokenizerFiles(kind, {name: read_file(folder / name) for name in names}, str(folder)))
    specials = tokenizer.specials
    for name in (CONFIG, GENERATION):
        path = folder / name
        if path.is_file():
            document = parse_object(read_file(path), str(path))
            specials = replace(specials, ends=specials.ends | config_ends(document, str(path)))
            require_fit(tokenizer.vocab, document, str(path))
    beyond = [number for number in specials.ends if number >= tokenizer.vocab]
    # an id of the model that no token has: it may end generation all the same, but it is no part of the tokenizer
    return tokenizer.with_specials(replace(specials, ends=specials.ends - frozenset(beyond)))


def tokenizer_from_json(document: Mapping[str, object], folder: Path | None = None) -> Tokenizer:
    """The tokenizer that `to_json` described, its files read from `folder`.

    Raises CheckpointError for a kind this version does not know and for files that are missing or changed.
    """
    kind = document.get("kind")
    known = ("bytes", *SOURCES)
    if not isinstance(kind, str) or kind not in known:
        raise CheckpointError(f"Unknown tokenizer kind {kind!r}: {nearest(str(kind), known)}")
    if kind == "bytes":
        return ByteTokenizer()
    tokenizer = _open(kept_files(document, folder))
    return tokenizer.with_specials(specials_from_json(document.get("specials"), tokenizer.vocab, str(folder)))


def _open(files: TokenizerFiles) -> HuggingFaceTokenizer | TiktokenTokenizer:
    return TiktokenTokenizer(files) if files.kind == "tiktoken" else HuggingFaceTokenizer(files)


def _kind(folder: Path) -> str | None:
    for kind in _ORDER:
        if all((folder / name).is_file() for name in SOURCES[kind]):
            return kind
    for here, other in ((VOCAB, MERGES), (MERGES, VOCAB)):
        if (folder / here).is_file():
            raise CheckpointError(
                f"{folder} holds {here} without {other}; copy {other} beside it, or {TOKENIZER_JSON}."
            )
    return None
