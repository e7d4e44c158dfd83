"""JSON from files nobody vouches for: UTF-8, no name twice, no nesting without end, no NaN."""

from __future__ import annotations

import gc
import json
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from statewell.errors import CheckpointError

LONGEST = 400_000_000  # bytes; the index of Kimi K3, the largest released, has 53 MB


def read_json(path: Path, longest: int = LONGEST) -> object:
    """The document in `path`. Raises CheckpointError when it is missing, no file, longer than `longest`, or not
    JSON."""
    return parse_json(read_start(path, 0, file_bytes(path), longest), str(path))


def parse_json(raw: bytes, where: str) -> object:
    """The document `raw` holds; `where` names it in errors. Raises CheckpointError for what is not strict JSON."""
    try:
        with collection_paused():
            return json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{where} is not UTF-8 text (byte {error.start}); use another copy.") from None
    except RecursionError:
        raise CheckpointError(f"{where} nests deeper than any real one; use another copy.") from None
    except ValueError as error:
        raise CheckpointError(f"{where} is not JSON ({shown(str(error))}); use another copy.") from None


def file_bytes(path: Path) -> int:
    """The size of the regular file `path`. Raises CheckpointError for anything else."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"{shown(str(path))} cannot be read: {reason}.") from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path} is not a file; give the file itself or the folder that holds it.")
    return status.st_size


def read_start(path: Path, begin: int, count: int, longest: int) -> bytes:
    """Bytes [begin, begin + count) of `path`, all of them. Raises CheckpointError when there are fewer or `count` is
    past `longest`."""
    if count > longest:
        raise CheckpointError(
            f"{path} asks for {count:,} bytes to be read at once, {longest:,} is the most a real one has."
        )
    try:
        with open(path, "rb") as opened:
            opened.seek(begin)
            raw = opened.read(count)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
    if len(raw) != count:
        raise CheckpointError(
            f"{path} was shortened while it was read: {count:,} bytes expected at {begin:,}, {len(raw):,} found."
        )
    return raw


def shown(name: str) -> str:
    """`name` as a message may show it: no control characters, at most 120 characters."""
    text = name if name.isprintable() and name else repr(name)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(name):,} characters)"


@contextmanager
def collection_paused() -> Generator[None]:
    """No search for reference cycles inside: half a million small objects without a cycle are walked again and again
    otherwise, which takes two thirds of the time of reading a large header."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for i, name in enumerate(names) if name in set(names[:i]))
        raise ValueError(f"the name {shown(twice)} is there twice")
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")
