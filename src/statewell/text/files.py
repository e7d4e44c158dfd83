"""The files of a tokenizer: which ones count, how they are read, and how a run keeps them.

Everything that reads them expects the worst: a size limit before the first byte, and our own errors, which name the
file. No file here is ever run; templates and code that lie beside them are not looked at.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from statewell.errors import CheckpointError
from statewell.text.tokenizer import Specials

TOKENIZER_JSON, VOCAB, MERGES, TIKTOKEN = "tokenizer.json", "vocab.json", "merges.txt", "tiktoken.model"
# What names tokens; the template is kept for whoever opens an export elsewhere, and never run.
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
SOURCES = {
    "huggingface": (TOKENIZER_JSON,),
    "vocab_and_merges": (VOCAB, MERGES),
    "tiktoken": (TIKTOKEN,),
}
FILE_NAMES = (*(name for names in SOURCES.values() for name in names), *BESIDE)
MOST_BYTES = 64 * 2**20  # released ones reach 33 MB; opening one takes about 15 times its size
MOST_IDS = 2**24


@dataclass(frozen=True)
class TokenizerFiles:
    """Where a tokenizer came from. kind: a key of SOURCES. contents: file name to bytes. where: for errors."""

    kind: str
    contents: Mapping[str, bytes]
    where: str = field(compare=False)

    @property
    def main(self) -> str:
        """The file that errors about the tokenizer's own rules name."""
        return SOURCES[self.kind][0]

    def path(self, name: str) -> str:
        """The file's place as errors give it."""
        return f"{self.where}/{name}"

    def to_json(self, specials: Specials) -> dict[str, object]:
        """The object a run keeps: the kind, the files by their hashes, the special ids."""
        return {
            "kind": self.kind,
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(self.contents.items())},
            "specials": {
                "separator": specials.separator,
                "opening": list(specials.opening),
                "ends": sorted(specials.ends),
                "pad": specials.pad,
            },
        }


def read_file(path: Path) -> bytes:
    """The content of `path`. Raises CheckpointError when it cannot be read or is too large to be a tokenizer's."""
    try:
        with open(path, "rb") as opened:
            large = os.fstat(opened.fileno()).st_size > MOST_BYTES
            content = b"" if large else opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); use another copy.") from error
    if large or len(content) > MOST_BYTES:
        raise CheckpointError(f"{path} is larger than {MOST_BYTES:,} bytes, no tokenizer's file is; use another copy.")
    return content


def parse_object(content: bytes, path: str) -> dict[str, object]:
    """The JSON object in `content`. Raises CheckpointError, naming `path`, when it is none."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON ({error or 'nested too deeply'}); use another copy.") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} holds {type(document).__name__}, not a JSON object; use another copy.")
    return document


def kept_files(document: Mapping[str, object], folder: Path | None) -> TokenizerFiles:
    """The files that `to_json` named, read from `folder` and held against their hashes.

    Raises CheckpointError for one that is missing or changed.
    """
    kind, named = str(document.get("kind")), document.get("files")
    if not isinstance(named, dict) or folder is None:
        raise CheckpointError(f"The tokenizer of kind {kind!r} names no files beside it; use another copy.")
    contents: dict[str, bytes] = {}
    for name, digest in named.items():
        if name not in (*SOURCES[kind], *BESIDE):  # a name is never a path to somewhere else
            raise CheckpointError(f"{folder}: the tokenizer names the file {name!r}, which is no tokenizer's.")
        contents[name] = read_file(folder / name)
        if hashlib.sha256(contents[name]).hexdigest() != digest:
            raise CheckpointError(f"{folder / name} is not the file this model was saved with; restore it.")
    missing = [name for name in SOURCES[kind] if name not in contents]
    if missing:
        raise CheckpointError(f"{folder}: the tokenizer does not name its {missing[0]}; use another copy.")
    return TokenizerFiles(kind, contents, str(folder))
