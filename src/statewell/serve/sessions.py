"""Saved sessions: one safetensors file each, in a folder for each key. Names come from clients; nothing else does.

Start at `Sessions.save`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from safetensors import SafetensorError

from statewell.config.numbers import format_bytes
from statewell.errors import CheckpointError
from statewell.formats.files import write_atomically
from statewell.formats.safetensors import Header, read_header
from statewell.formats.strict_json import parse_json
from statewell.memory.base import Snapshot
from statewell.memory.snapshot import load_snapshot, save_snapshot
from statewell.serve.failures import RefusedError
from statewell.serve.limits import Limits
from statewell.serve.recent import Answer
from statewell.serve.schemas import SESSION_NAME

SUFFIX = ".safetensors"


@dataclass(frozen=True, kw_only=True)
class SavedSession:
    """ids: that the memory has taken in. unread: that follow them. messages: of a chat. fingerprint: of the model.
    created: Unix time.
    """

    name: str
    ids: tuple[int, ...]
    unread: tuple[int, ...]
    messages: Sequence[Mapping[str, object]] | None
    fingerprint: str
    bytes: int
    created: int


class Sessions:
    """The sessions in one folder, which need not exist yet. Its methods read and write files: call them in a thread.

    fingerprint: gives the served model's; asked when it is first needed, since it reads all weights.
    """

    def __init__(self, folder: Path, fingerprint: Callable[[], str], limits: Limits) -> None:
        self._folder, self._ask, self._limits = folder, fingerprint, limits
        self._lock = threading.Lock()
        self._known: str | None = None

    @property
    def fingerprint(self) -> str:
        """The served model's."""
        if self._known is None:
            self._known = self._ask()
        return self._known

    def save(self, name: str, snapshot: Snapshot, answer: Answer) -> SavedSession:
        """Write a new one, whole or not at all. Raises RefusedError for a name in use, too many, or a full disk.

        snapshot: of the memory after the first of the answer's tokens; as `Conversation.save` writes it.
        """
        (length,) = snapshot.lengths
        notes = {
            "ids": json.dumps(answer.ids[:length]),
            "unread": json.dumps(answer.ids[length:]),
            "messages": json.dumps(answer.messages),
        }
        size = sum(tensor.nbytes for tensor in snapshot.tensors.values())
        with self._lock:
            path = self._place(answer.owner, name, size)
            self._write(path, lambda: save_snapshot(path, snapshot, self.fingerprint, notes))
        return self.open(answer.owner, name)

    def fork(self, owner: str, name: str, new: str) -> SavedSession:
        """Copy one. Raises RefusedError as `save` does, and for one that is not there."""
        with self._lock:
            source = self._existing(owner, name)
            path = self._place(owner, new, source.stat().st_size)
            self._write(path, lambda: write_atomically(path, lambda temporary: _copy(source, temporary)))
        return self.open(owner, new)

    def delete(self, owner: str, name: str) -> None:
        """Raises RefusedError for one that is not there."""
        with self._lock:
            self._existing(owner, name).unlink()

    def all(self, owner: str) -> list[SavedSession]:
        """Every readable one, by name."""
        found: list[SavedSession] = []
        for path in self._files(owner):
            try:
                found.append(_read(path))
            except CheckpointError:  # cut or foreign; `open` says why
                continue
        return found

    def open(self, owner: str, name: str) -> SavedSession:
        """What a session holds, without its memory. Raises RefusedError for one that is not there, or damaged."""
        path = self._existing(owner, name)
        try:
            return _read(path)
        except CheckpointError:  # whose sentence names the file
            raise _unusable(name, "is damaged; delete it.") from None

    def load(self, owner: str, name: str) -> tuple[SavedSession, Snapshot]:
        """A session and its memory. Raises RefusedError for one that is not there, damaged, or another model's."""
        session = self.open(owner, name)
        if session.fingerprint != self.fingerprint:
            raise _unusable(name, "was taken from another model; serve that one.")
        try:
            snapshot = load_snapshot(self._existing(owner, name), self.fingerprint).snapshot
        except CheckpointError:
            raise _unusable(name, "is damaged; delete it.") from None
        if snapshot.lengths != (len(session.ids),):
            raise _unusable(name, "is damaged; delete it.")
        return session, snapshot

    def _existing(self, owner: str, name: str) -> Path:
        path = self._path(owner, name)
        if not path.is_file():
            raise RefusedError(404, "session_not_found", f"There is no session {name!r}.", "name")
        return path

    def _place(self, owner: str, name: str, size: int) -> Path:
        """Where a new one goes. Raises RefusedError where it may not."""
        path, files = self._path(owner, name), self._files(owner)
        held = sum(file.stat().st_size for file in files)
        if path.exists():
            raise RefusedError(409, "session_exists", f"There is a session {name!r}; delete it first.", "name")
        if len(files) >= self._limits.sessions:
            raise RefusedError(409, "too_many_sessions", f"There are {len(files)} sessions, the most; delete one.")
        if held + size > self._limits.session_bytes:
            most, taken = format_bytes(self._limits.session_bytes), format_bytes(held)
            raise RefusedError(409, "too_many_sessions", f"Sessions take {taken} of {most}; delete some.")
        return path

    def _write(self, path: Path, write: Callable[[], None]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write()
        except (OSError, SafetensorError):
            message = f"The session {path.stem!r} could not be written; the disk may be full. Nothing was saved."
            raise RefusedError(507, "not_saved", message) from None

    def _path(self, owner: str, name: str) -> Path:
        # checked where it becomes a path too, whoever calls: letters, digits, - and _, so that it stays in its folder
        if re.fullmatch(SESSION_NAME.strip("^$"), name) is None:
            raise RefusedError(400, "invalid_value", "A session's name is 1 to 64 letters, digits, - and _.", "name")
        return self._folder_of(owner) / f"{name}{SUFFIX}"

    def _files(self, owner: str) -> list[Path]:
        return sorted(path for path in self._folder_of(owner).glob(f"*{SUFFIX}") if not path.name.startswith("."))

    def _folder_of(self, owner: str) -> Path:
        return self._folder / (hashlib.sha256(owner.encode()).hexdigest()[:16] if owner else "open")


def _unusable(name: str, why: str) -> RefusedError:
    return RefusedError(409, "session_unusable", f"The session {name!r} {why}", "name")


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _read(path: Path) -> SavedSession:
    header = read_header(path)
    messages = parse_json(header.metadata.get("note.messages", "null").encode(), "a session's messages")
    if messages is not None and not isinstance(messages, list):
        raise CheckpointError(f"The session {path.stem} holds messages that are none; delete it.")
    status = path.stat()
    return SavedSession(
        name=path.stem,
        ids=_ids(header, "ids", path.stem),
        unread=_ids(header, "unread", path.stem),
        messages=messages,
        fingerprint=header.metadata.get("fingerprint", ""),
        bytes=status.st_size,
        created=int(status.st_mtime),
    )


def _ids(header: Header, note: str, name: str) -> tuple[int, ...]:
    ids = parse_json(header.metadata.get(f"note.{note}", "[]").encode(), f"a session's {note}")
    if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
        raise CheckpointError(f"The session {name} does not say which tokens it holds; delete it.")
    return tuple(cast(list[int], ids))
