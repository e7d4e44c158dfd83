"""One expert's bytes out of its files: read in place with `preadv`, every length checked."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from statewell.errors import CheckpointError
from statewell.formats.listing import StoredTensor

StoredExpert = tuple[StoredTensor, ...]  # w1, w3, w2, of each its packed bytes and then its scales


def expert_bytes(expert: StoredExpert) -> int:
    """What the expert takes, in a file and in memory."""
    return sum(stored.entry.nbytes for stored in expert)


class _Piece(NamedTuple):
    stored: StoredTensor
    into: memoryview


class ExpertFiles:
    """Files opened when they are first read and kept open; `close` ends that. Threads may read at the same time."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._descriptors: dict[Path, int] = {}
        for path in paths:
            if path not in self._descriptors:
                self._descriptors[path] = _open(path)

    def close(self) -> None:
        """Close every file; nothing can be read afterwards."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def read(self, expert: StoredExpert, into: memoryview) -> None:
        """Fill the start of `into` with the expert's tensors, one after another.

        Raises CheckpointError, naming file, tensor, expected and found, where a file has become shorter.
        """
        pieces, start = [], 0
        for stored in expert:
            pieces.append(_Piece(stored, into[start : start + stored.entry.nbytes]))
            start += stored.entry.nbytes
        run: list[_Piece] = []
        for piece in sorted(pieces, key=lambda p: (str(p.stored.path), p.stored.entry.begin)):
            if run and not _follows(run[-1].stored, piece.stored):
                self._read_run(run)
                run = []
            run.append(piece)
        self._read_run(run)

    def _read_run(self, run: list[_Piece]) -> None:
        """Tensors that lie next to each other, with as few calls as the system allows."""
        descriptor, start = self._descriptors[run[0].stored.path], run[0].stored.entry.begin
        done, wanted = 0, sum(len(piece.into) for piece in run)
        while done < wanted:
            try:
                got = os.preadv(descriptor, _rest(run, done), start + done)
            except OSError as error:
                raise CheckpointError(
                    f"{run[0].stored.path} cannot be read at byte {start + done:,} ({error}); use another copy of it."
                ) from error
            if got == 0:
                raise _shortened(run, start + done)
            done += got


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be opened ({error}); give the folder of a whole checkpoint.") from error


def _follows(one: StoredTensor, other: StoredTensor) -> bool:
    return one.path == other.path and one.entry.end == other.entry.begin


def _rest(run: list[_Piece], done: int) -> list[memoryview]:
    """The buffers of a run without the first `done` bytes."""
    rest = []
    for piece in run:
        rest.append(piece.into[min(done, len(piece.into)) :])
        done -= min(done, len(piece.into))
    return [buffer for buffer in rest if len(buffer)]


def _shortened(run: list[_Piece], end: int) -> CheckpointError:
    """The file ends at byte `end`, inside one of the run's tensors."""
    stored = next(piece.stored for piece in run if end < piece.stored.entry.end)
    entry = stored.entry
    return CheckpointError(
        f"{stored.path} was shortened: tensor {entry.name} has {entry.nbytes:,} bytes up to byte {entry.end:,}, "
        f"{max(0, end - entry.begin):,} were found; use another copy of it."
    )
