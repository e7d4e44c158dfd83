"""One process at a time in a run folder. The lock is the operating system's and ends with the process,
however it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from statewell.errors import BusyError


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold RUN/lock. Raises BusyError, naming the process, when another holds it.

    The file stays behind: removing it would let two processes lock two different files of one name.
    """
    with open(folder / "lock", "a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise BusyError(
                f"{folder} is in use by process {holder}; wait until it ends, or name another folder with --out."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
