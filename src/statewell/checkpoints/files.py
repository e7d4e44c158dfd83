"""Tensors in a safetensors file, written whole or not at all (`formats.files`)."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from statewell.errors import CheckpointError
from statewell.formats.files import write_atomically


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
