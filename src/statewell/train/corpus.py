"""Text as two memory-mapped streams of token ids, train and held-out, kept in a cache under the hash of their
content.

A stream is a separator (NUL for bytes), then each file followed by one separator. `sources.py` says which
files count; batches are drawn in `data.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from statewell.config.numbers import format_bytes
from statewell.errors import DataError, RequestError
from statewell.text import Tokenizer
from statewell.train.sources import SourceFile, Sources, find_sources, read_again

CACHE_VERSION = 1
# Held-out files are added until their bytes reach the target share; none that would take it past the most.
HELD_OUT_TARGET, HELD_OUT_LEAST, HELD_OUT_MOST = 0.07, 0.05, 0.10


@dataclass(frozen=True, kw_only=True)
class TokenStream:
    """ids: [tokens], memory-mapped, read-only. bounds: [files + 1] int64; file i is ids[bounds[i] : bounds[i
    + 1] - 1], and the separator before it is at bounds[i] - 1. token_bytes: [vocab] int64, the bytes of text that each
    id stands for, a separator and other control tokens one each; None where every id is one byte.
    """

    ids: np.ndarray
    bounds: np.ndarray
    token_bytes: np.ndarray | None = None

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def files(self) -> int:
        return len(self.bounds) - 1


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Both streams. key: identifies the content, its split and its tokenizer; two runs with equal keys saw
    equal text.

    Held-out files are in the order of their hashes, so that any first part of them is a fair sample.
    """

    key: str
    train: TokenStream
    held_out: TokenStream
    summary: str


@dataclass(frozen=True, kw_only=True)
class _Part:
    file: SourceFile
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def open_corpus(paths: Sequence[Path], tokenizer: Tokenizer) -> Corpus:
    """The corpus of `paths` (none: the standard library's source), from the cache or built into it.

    Raises DataError for unusable text and RequestError when the cache folder cannot be written.
    """
    sources = find_sources(paths)
    train, held_out = split(sources)
    key = _key(train, held_out, tokenizer)
    folder = cache_folder() / "corpus" / key[:32]
    token_bytes = _token_bytes(tokenizer)
    streams = _open(folder, key, token_bytes)
    if streams is None:
        _build(folder, key, {"train": train, "held_out": held_out}, tokenizer)
        streams = _open(folder, key, token_bytes)
        if streams is None:
            raise RequestError(
                f"The cache at {folder} does not keep what is written; set STATEWELL_CACHE to another folder."
            )
    return Corpus(key=key, train=streams[0], held_out=streams[1], summary=_summary(sources, held_out))


def cache_folder() -> Path:
    """Where encoded text is kept: STATEWELL_CACHE, else statewell under XDG_CACHE_HOME, else
    ~/.cache/statewell.
    """
    if chosen := os.environ.get("STATEWELL_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "statewell"


def split(sources: Sources) -> tuple[list[_Part], list[_Part]]:
    """Train and held-out parts, by whole files in the order of their content hashes.

    Where whole files do not come to 5-10% of the bytes (one file, or a few large ones), the last tenth of the
    text is cut from the end of the largest file instead.
    """
    held: list[SourceFile] = []
    size = 0
    for file in sorted(sources.files, key=lambda file: file.digest):
        if size >= HELD_OUT_TARGET * sources.size:
            break
        if size + file.size <= HELD_OUT_MOST * sources.size:
            held.append(file)
            size += file.size
    whole = {file.digest: _Part(file=file, start=0, stop=file.size) for file in sources.files}
    if size >= HELD_OUT_LEAST * sources.size:
        held_digests = {file.digest for file in held}
        train = [part for digest, part in whole.items() if digest not in held_digests]
        return train, [whole[file.digest] for file in held]
    largest = max(sources.files, key=lambda file: (file.size, file.digest))
    cut = _character_start(largest, largest.size - min(round(HELD_OUT_MOST * sources.size), largest.size // 2))
    whole[largest.digest] = _Part(file=largest, start=0, stop=cut)
    return [part for part in whole.values() if part.size], [_Part(file=largest, start=cut, stop=largest.size)]


def _character_start(file: SourceFile, position: int) -> int:
    content = read_again(file)
    while position > 0 and position < len(content) and content[position] & 0xC0 == 0x80:
        position -= 1
    return position


def _key(train: list[_Part], held_out: list[_Part], tokenizer: Tokenizer) -> str:
    parts = [[[p.file.digest, p.start, p.stop] for p in side] for side in (train, held_out)]
    document = json.dumps([CACHE_VERSION, tokenizer.to_json(), parts], sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()


def _summary(sources: Sources, held_out: list[_Part]) -> str:
    held = sum(part.size for part in held_out)
    files = f"{len(sources.files):,} file{'s' if len(sources.files) != 1 else ''}"
    text = f"Text: {files}, {format_bytes(sources.size)}, {100 * held / sources.size:.1f}% held out."
    if sources.skipped:
        text += f" Passed over: {', '.join(f'{count:,} {reason}' for reason, count in sources.skipped)}."
    return text


def _build(folder: Path, key: str, sides: dict[str, list[_Part]], tokenizer: Tokenizer) -> None:
    """Write the encoded streams beside `folder`, then move them there in one rename; a damaged one is
    replaced.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise RequestError(
            f"The cache folder {folder.parent} cannot be written ({error.strerror}); "
            f"set STATEWELL_CACHE to another one."
        ) from error
    try:
        dtype = np.dtype("uint8" if tokenizer.vocab <= 2**8 else "uint16" if tokenizer.vocab <= 2**16 else "uint32")
        streams = {side: _write_stream(fresh / f"{side}.bin", parts, tokenizer, dtype) for side, parts in sides.items()}
        index = {
            "format": "statewell-corpus",
            "version": CACHE_VERSION,
            "key": key,
            "dtype": dtype.name,
            **streams,
        }
        with open(fresh / "index.json", "w", encoding="utf-8") as out:
            json.dump(index, out)
            out.flush()
            os.fsync(out.fileno())
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(fresh, folder)
    except OSError as error:
        # another process building the same corpus may have won the rename; what it wrote is the same
        if _open(folder, key) is None:
            raise RequestError(
                f"The text cannot be cached at {folder} ({error.strerror}); set STATEWELL_CACHE to another folder."
            ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _write_stream(path: Path, parts: list[_Part], tokenizer: Tokenizer, dtype: np.dtype) -> dict[str, object]:
    separator = np.array([tokenizer.separator], dtype).tobytes()
    digest = hashlib.sha256(separator)
    bounds = [1]
    with open(path, "wb") as out:
        out.write(separator)
        for part in parts:
            text = read_again(part.file)[part.start : part.stop].decode("utf-8")
            ids = np.array(tokenizer.encode(text), dtype)
            encoded = ids.tobytes() + separator
            out.write(encoded)
            digest.update(encoded)
            bounds.append(bounds[-1] + len(ids) + 1)
        out.flush()
        os.fsync(out.fileno())
    return {"bounds": bounds, "sha256": digest.hexdigest()}


def _token_bytes(tokenizer: Tokenizer) -> np.ndarray | None:
    controls = {*tokenizer.controls.values(), tokenizer.separator}
    sizes = [1 if number in controls else _size(tokenizer, number) for number in range(tokenizer.vocab)]
    return None if set(sizes) == {1} else np.array(sizes, dtype=np.int64)


def _size(tokenizer: Tokenizer, number: int) -> int:
    try:
        return len(tokenizer.decode_bytes([number]))
    except RequestError:  # a vocabulary may have holes; no text is encoded to one
        return 0


def _open(folder: Path, key: str, token_bytes: np.ndarray | None = None) -> tuple[TokenStream, TokenStream] | None:
    """The two streams in `folder`, or None where they are missing or damaged."""
    try:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        if index["key"] != key or index["version"] != CACHE_VERSION:
            return None
        sides = [(folder / f"{side}.bin", index[side]) for side in ("train", "held_out")]
        streams = [_open_stream(path, entry, index["dtype"], token_bytes) for path, entry in sides]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return streams[0], streams[1]


def _open_stream(path: Path, entry: dict[str, object], dtype: str, token_bytes: np.ndarray | None) -> TokenStream:
    bounds = np.asarray(entry["bounds"], dtype=np.int64)
    ids = np.memmap(path, dtype=dtype, mode="r")
    with open(path, "rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if len(ids) != bounds[-1] or digest != entry["sha256"]:
        raise ValueError(f"{path} is damaged")
    return TokenStream(ids=ids, bounds=bounds, token_bytes=token_bytes)


def require_windows(corpus: Corpus, length: int) -> None:
    """Raise DataError unless the training text holds at least one window of `length` tokens and the one after
    it.
    """
    if corpus.train.tokens < length + 1:
        raise DataError(
            f"The training text holds {corpus.train.tokens:,} tokens and a window needs {length + 1:,}; "
            f"add text, or shorten the window with --set length={max(1, corpus.train.tokens - 1)}."
        )
    if corpus.held_out.tokens < 3:  # two of them are separators
        raise DataError("There is too little text to hold any out for evaluation; add text with --data.")
