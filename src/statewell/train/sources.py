"""Which files a corpus is made of: named files and folders, or the interpreter's own standard library.

Only UTF-8 text counts. A file named directly must be usable; inside a folder the others are passed over and
counted.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from statewell.errors import DataError

# Test folders are more than half of the standard library's bytes and much of that is generated tables.
_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One usable text file. digest: SHA-256 of its `size` bytes, hexadecimal."""

    path: Path
    size: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Usable files in sorted order, each content once, and how many of a folder's were passed over for which
    reason.
    """

    files: tuple[SourceFile, ...]
    skipped: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def find_sources(paths: Sequence[Path]) -> Sources:
    """The text files among `paths`, folders searched to any depth without their hidden entries.

    No paths at all means the standard library. Raises DataError, naming the file, for a named one that is
    missing, unreadable, empty or not text, and when nothing usable is left.
    """
    skipped: Counter[str] = Counter()
    files: dict[str, SourceFile] = {}  # by digest: a second copy would put the same text in train and held-out
    seen: set[Path] = set()
    named = [(path, _walk(path)) for path in paths] if paths else [(_library_folder(), _walk_library())]
    for root, found in named:
        for path in found:
            resolved = path.resolve()
            if resolved in seen:
                continue
            seen.add(resolved)
            content, problem = _read(path)
            if problem is not None:
                if path == root:
                    raise DataError(f"{path} is {problem}; --data takes UTF-8 text files and folders of them.")
                skipped[problem] += 1
                continue
            digest = hashlib.sha256(content).hexdigest()
            if digest in files:
                skipped["a repetition"] += 1
                continue
            files[digest] = SourceFile(path=path, size=len(content), digest=digest)
    if not files:
        raise DataError(_nothing_usable(paths, skipped))
    return Sources(files=tuple(files.values()), skipped=tuple(sorted(skipped.items())))


def read_again(file: SourceFile) -> bytes:
    """The bytes of a file found earlier. Raises DataError when they are no longer the same."""
    content, problem = _read(file.path)
    if problem is not None or hashlib.sha256(content).hexdigest() != file.digest:
        raise DataError(f"{file.path} changed while the corpus was being built; start again once it holds still.")
    return content


def _walk(path: Path) -> Iterator[Path]:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; check the path given to --data.") from error
    if stat.S_ISREG(mode):
        yield path
    elif stat.S_ISDIR(mode):
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                if not name.startswith(".") and Path(folder, name).is_file():
                    yield Path(folder, name)
    else:
        raise DataError(f"{path} is neither a file nor a folder; --data takes UTF-8 text files and folders of them.")


def _library_folder() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _walk_library() -> Iterator[Path]:
    for folder, folders, names in os.walk(_library_folder()):
        folders[:] = sorted(set(folders) - _NOT_LIBRARY)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def _read(path: Path) -> tuple[bytes, str | None]:
    """The content, and why it cannot be used (None when it can). NUL is refused: it stands between files."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return b"", f"not readable ({error.strerror})"
    if not content:
        return content, "empty"
    if b"\0" in content:
        return content, "not UTF-8 text"
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return content, "not UTF-8 text"
    return content, None


def _nothing_usable(paths: Sequence[Path], skipped: Counter[str]) -> str:
    if not paths:
        return f"The standard library has no source files at {_library_folder()}; name text with --data."
    where = ", ".join(str(path) for path in paths)
    reasons = "; ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
    return f"No usable text in {where} ({reasons or 'no files'}); --data takes UTF-8 text files and folders of them."
