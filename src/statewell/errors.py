"""Every error statewell raises on purpose. Each message is one plain sentence: the value, the limit, the way out.

The command line catches `StatewellError`, prints its message and exits with `exit_code`; nothing else is caught there.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StatewellError(Exception):
    """The work could not be done (exit code 1)."""

    exit_code = 1


class RequestError(StatewellError):
    """The request itself was wrong: an unknown name, a value out of range, unusable input (exit code 2)."""

    exit_code = 2


class ConfigError(RequestError):
    """A configuration cannot exist: an unknown key, a contradiction, a value outside its limits."""


class DataError(RequestError):
    """Training or evaluation text is missing, empty, unreadable or not text."""


class LimitError(RequestError):
    """A context, row count or length is past what the model or the memory can hold."""


class ShapeError(RequestError):
    """A tensor handed to an operation has the wrong shape, dtype or device."""


class CheckpointError(StatewellError):
    """A saved run, checkpoint or snapshot is truncated, foreign or does not fit this model."""


class BusyError(StatewellError):
    """A run folder is in use by another process."""


class TrainingError(StatewellError):
    """Training had to stop, for example at a loss that is not finite."""


class MissingExtraError(StatewellError):
    """Something optional is not installed; the message names the extra that brings it."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question naming the closest valid spelling, with a space after it; nothing where none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'? " if close else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause naming the closest valid spelling, and all of them, to end an error about an unknown `name`."""
    valid = sorted(known)
    return f"{did_you_mean(name, valid)}Valid: {', '.join(valid)}."
