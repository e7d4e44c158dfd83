"""Files that are whole or absent: written beside their place, flushed to the disk, then renamed into it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: bytes | Callable[[Path], None]) -> None:
    """Put bytes, or what `write(temporary path)` writes, at `path`: the old file or the new one, never a part.

    The temporary file lies beside it, is flushed to the disk before the rename, and is gone after a failure.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # what the user's umask gives: safetensors would keep the file to its owner
        if isinstance(write, bytes):
            temporary.write_bytes(write)
        else:
            write(temporary)
        temporary.chmod(mode)
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
