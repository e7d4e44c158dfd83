"""Files that are whole or absent: written beside their place, flushed to the disk, then renamed into it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from statewell.errors import CheckpointError


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


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically. Tensors are copied where they are not contiguous."""
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, lambda temporary: save_file(contiguous, temporary, metadata or {}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a safetensors file and its metadata. Raises CheckpointError when it is missing, cut short or no
    such file."""
    try:
        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no dict
            return tensors, opened.metadata() or {}
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; give the folder of a saved model or run.") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is not a whole safetensors file ({error}); it may be cut short, use another copy."
        ) from error


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
