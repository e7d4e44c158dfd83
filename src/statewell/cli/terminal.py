"""What every verb prints with: figures and documents on stdout, progress and words to the person on stderr."""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]


@cache
def stdout() -> Console:
    """The console for results."""
    from rich.console import Console

    return Console(highlight=False)


@cache
def stderr() -> Console:
    """The console for progress, notes and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_json(document: object) -> None:
    """Write one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def printable(text: str) -> str:
    """`text` with control characters written out: names in a hostile file must not steer the terminal."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else repr(letter)[1:-1] for letter in text)


def say(sentence: str) -> None:
    """One plain sentence to the person, on stderr."""
    sys.stderr.write(printable(sentence) + "\n")
    sys.stderr.flush()
