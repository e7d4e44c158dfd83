"""The lines of `statewell chat`: messages, which are answered, and commands. Start at `ChatLines.run`."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from statewell.cli.generate import visible
from statewell.cli.generate import write as show
from statewell.cli.terminal import printable, say, stderr
from statewell.config.numbers import format_bytes
from statewell.engine.conversation import Conversation, Talk, Turn
from statewell.engine.kinds import by_kind
from statewell.errors import RequestError, StatewellError
from statewell.memory.paged import PagedBytes
from statewell.text.reply import Called, Reasoning

NAME = r"[A-Za-z0-9_-]{1,64}"
SUFFIX = ".safetensors"


class ChatLines:
    """Reads lines and does what they say. folder: of saved conversations."""

    def __init__(self, conversation: Conversation, folder: Path) -> None:
        self._conversation, self._folder = conversation, folder
        # a fork is a value: only the one that goes on has its place in the conversation
        self._forks: list[Talk] = [conversation.talk]
        self._current = 0
        self._own: set[str] = set()  # names that may be written again
        self._done = False
        self._commands: dict[str, tuple[str, str, Callable[[str], None]]] = {
            "/save": ("NAME", "keep the conversation and its memory in a file", self._save),
            "/load": ("NAME", "go on with a saved one, reading nothing again", self._load),
            "/fork": ("[N]", "go on in a copy; with a number, go back to that fork", self._fork),
            "/new": ("", "begin a new conversation in this fork", self._new),
            "/memory": ("", "bytes of memory, by kind of layer", self._memory),
            "/history": ("", "what was said", self._history),
            "/help": ("", "this list", self._help),
            "/quit": ("", "leave, as the end of the input does", self._quit),
        }

    def run(self, lines: TextIO) -> None:
        """Until /quit or the end of the lines. Ctrl-C ends an answer, or drops a line, and never more."""
        read = _asked if lines.isatty() else lambda: _read(lines)
        if lines.isatty():
            _edit_lines()
        while not self._done:
            try:
                line = read()
                if line is None:
                    return
                self._take(line)
            except KeyboardInterrupt:
                say("\nCtrl-C ends an answer; /quit leaves.")
            except StatewellError as error:
                say(f"error: {error}")

    def _take(self, line: str) -> None:
        line = line.strip()
        if not line:
            return
        if not line.startswith("/"):
            self._ask(line)
            return
        word, _, rest = line.partition(" ")
        command = self._commands.get(word)
        if command is None:
            raise RequestError(f"{word} is no command; /help lists them. A message cannot begin with /.")
        command[2](rest.strip())

    def _ask(self, text: str) -> None:
        with _interrupts(self._conversation.interrupt):
            for piece in self._conversation.ask(text):
                if isinstance(piece, Turn):
                    show("\n")
                    _dim(said_of(piece))
                elif isinstance(piece, Reasoning):
                    _dim(piece.text, end="")
                elif isinstance(piece, Called):
                    _dim(f"\n(the model calls {piece.call.name}({piece.call.arguments}); there are no tools here)")
                else:
                    show(piece.text)
        self._forks[self._current] = self._conversation.talk

    def _save(self, name: str) -> None:
        path = self._path(name)
        if path.exists() and name not in self._own:
            raise RequestError(f"There is a conversation {name} already; take another name, or delete {path}.")
        tokens = self._conversation.save(path)
        self._own.add(name)
        say(f"Saved {tokens:,} tokens in {path} ({format_bytes(path.stat().st_size)}).")

    def _load(self, name: str) -> None:
        path = self._path(name)
        if not path.is_file():
            found = sorted(each.stem for each in self._folder.glob(f"*{SUFFIX}") if not each.name.startswith("."))
            there = f"there are {', '.join(found)}" if found else "none was saved yet"
            raise RequestError(f"There is no conversation {name} in {self._folder}; {there}.")
        tokens = self._conversation.load(path)
        self._own.add(name)
        self._forks[self._current] = self._conversation.talk
        say(f"Loaded {tokens:,} tokens; the last said was:")
        self._say_messages(self._conversation.talk, last=2)

    def _path(self, name: str) -> Path:
        if re.fullmatch(NAME, name) is None:
            raise RequestError("Give a name of 1 to 64 letters, digits, - and _, as in /save monday.")
        return self._folder / f"{name}{SUFFIX}"

    def _fork(self, number: str) -> None:
        if number:
            if not number.isdecimal() or not 1 <= int(number) <= len(self._forks):
                raise RequestError(f"There is no fork {number}; there are 1 to {len(self._forks)}.")
            self._current = int(number) - 1
            self._conversation.talk = self._forks[self._current]
        else:
            self._forks.append(self._conversation.talk)
            self._current = len(self._forks) - 1
        said = len(self._conversation.talk.messages)
        say(f"Fork {self._current + 1} of {len(self._forks)}, {said} messages long.")

    def _new(self, _: str) -> None:
        self._conversation.restart()
        self._forks[self._current] = self._conversation.talk
        say("A new conversation.")

    def _memory(self, _: str) -> None:
        for line in memory_lines(self._conversation):
            say(line)

    def _history(self, _: str) -> None:
        self._say_messages(self._conversation.talk)

    def _say_messages(self, talk: Talk, last: int | None = None) -> None:
        for message in talk.messages[-last:] if last else talk.messages:
            say(f"{message.role}: {visible(message.content)}")

    def _help(self, _: str) -> None:
        for word, (argument, does, _do) in self._commands.items():
            say(f"{f'{word} {argument}':<12} {does}")

    def _quit(self, _: str) -> None:
        self._done = True


def said_of(turn: Turn) -> str:
    """How an answer ended and how much of its prompt was in memory, as one line."""
    usage, reuse = turn.usage, turn.usage.reuse
    new = "1 token" if usage.generated == 1 else f"{usage.generated:,} tokens"
    why = "" if reuse.missed is None else f" ({reuse.missed})"
    ended = {"length": "cut at --max-tokens", "context": "the model holds no more; /new begins again"}
    end = ended.get(turn.finish, turn.finish if turn.finish in ("interrupted", "error") else "")
    parts = [
        f"{new} in {turn.seconds:.1f} s",
        f"{reuse.tokens:,} of {usage.prompt:,} prompt tokens were in memory{why}",
        *([end] if end else []),
        *([turn.error] if turn.error else []),
    ]
    return "; ".join(parts)


def memory_lines(conversation: Conversation) -> list[str]:
    """Bytes used and reserved by each kind of layer, and of all together, as a table."""
    kinds = by_kind(conversation.engine)
    names = {kind.mixer: f"{kind.mixer} x {kind.layers}" for kind in kinds}
    rows: list[Sequence[str]] = [("", "slots", "pages", "held", "reserved", "used")]
    rows += [(names[kind.mixer], *_cells(kind.reserved, kind.used)) for kind in kinds]
    gauges = conversation.engine.gauges()
    rows.append(("all", *_cells(PagedBytes(**gauges.reserved), PagedBytes(**gauges.used))))
    widths = [max(len(row[at]) for row in rows) for at in range(6)]
    lines = ["  ".join(_padded(cell, widths[at], at) for at, cell in enumerate(row)).rstrip() for row in rows]
    return [*lines, _COLUMNS]


_COLUMNS = "bytes. slots: states of an answer under way; pages: its tokens, and all that were kept; held: states kept"


def _cells(reserved: PagedBytes, used: PagedBytes) -> list[str]:
    parts = (reserved.slots, reserved.pages, reserved.held, reserved.reserved, used.reserved)
    return [f"{value:,}" for value in parts]


def _padded(cell: str, width: int, column: int) -> str:
    return f"{cell:>{width}}" if column else f"{cell:<{width}}"


def _dim(text: str, end: str = "\n") -> None:
    stderr().print(printable(text), style="dim", markup=False, soft_wrap=True, end=end)


def _asked() -> str | None:
    try:
        return input("> ")
    except EOFError:
        say("")
        return None


def _read(lines: TextIO) -> str | None:
    return lines.readline() or None


def _edit_lines() -> None:
    """Arrow keys and earlier lines, where this Python was built with readline; it works by being imported."""
    try:
        import readline  # noqa: F401
    except ImportError:
        say("This Python has no readline, so arrow keys do not bring back earlier lines.")


@contextmanager
def _interrupts(interrupt: Callable[[], None]) -> Iterator[None]:
    """While open, Ctrl-C calls `interrupt`: never in the middle of a pass, which would leave a memory half written."""

    def ask(number: int, frame: FrameType | None) -> None:
        interrupt()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
