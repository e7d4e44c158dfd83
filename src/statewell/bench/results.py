"""The document `results.json`: what a comparison measured, one row per architecture.

Owns the keys and their meaning; measures and draws nothing. Everything here is plain JSON, so the report can
be drawn again on a machine without torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, cast

from statewell.errors import CheckpointError

VERSION = 1
MEMORY_CONTEXTS = (1_024, 32_768, 1_048_576)


class Machine(TypedDict):
    """Where the figures come from."""

    cpu: str
    cores: int
    threads: int
    torch: str
    python: str
    statewell: str
    date: str


class Text(TypedDict):
    """The bytes every row was trained and judged on. `files` counts them, `hash` names their content."""

    source: str
    files: int
    train_bytes: int
    held_out_bytes: int
    hash: str


class Settings(TypedDict):
    """What all rows share. `changes` names what `--match total` altered, one sentence each."""

    size: str
    archs: list[str]
    tokens: int
    minutes: float | None
    seeds: int
    match: str
    train_length: int
    rows_per_step: int
    data: Text
    changes: list[str]


class TimePoint(TypedDict):
    """Median seconds for one token when the memory already holds `context` tokens; null with a `note` when
    not run.
    """

    context: int
    seconds: float | None
    note: str | None


class MemoryPoint(TypedDict):
    """Bytes one row's memory needs at `context` tokens, planned."""

    context: int
    bytes: int


class CurvePoint(TypedDict):
    """Training loss in bits per byte, averaged over the steps since the point before."""

    step: int
    tokens: int
    train_bits_per_byte: float


class HeldOutPoint(TypedDict):
    """Held-out bits per byte after `tokens` training tokens, on one fixed part of the held-out text."""

    tokens: int
    bits_per_byte: float


class Sample(TypedDict):
    """What the model wrote after `prompt`."""

    prompt: str
    text: str


class Row(TypedDict):
    """One architecture. Curves, samples and `run` belong to the first seed; speeds are medians over seeds.

    `spread` is the largest minus the smallest held-out figure over the seeds (null with one seed), and
    `within_spread_of` names the rows whose mean is no farther away than the larger of the two spreads.
    `carried_truncated_at` is the model's limit where it ended files early: those figures rest on less text.
    """

    arch: str
    parameters: int
    active_parameters: int
    compared_parameters: int
    flops_per_token: int
    val_bits_per_byte: float
    val_bits_per_byte_carried: float | None
    carried_truncated_at: int | None
    val_bits_per_byte_seeds: list[float]
    spread: float | None
    within_spread_of: list[str]
    train_tokens_per_s: float
    decode_tokens_per_s: float | None
    recall: None
    memory_bytes: dict[str, int]
    memory_measured: list[int]
    memory_curve: list[MemoryPoint]
    beyond_model_limit: list[int]
    limit: int | None
    time_per_token: list[TimePoint]
    curve: list[CurvePoint]
    val_curve: list[HeldOutPoint]
    samples: list[Sample]
    run: str


class Results(TypedDict):
    """The whole document. Rows appear as they finish; `finished` tells whether all asked for are there.

    `notes` are sentences a reader must know to trust the figures.
    """

    version: int
    command: str
    finished: bool
    machine: Machine
    settings: Settings
    notes: list[str]
    rows: list[Row]


def to_json(results: Results) -> str:
    """The document as text, in the order of its keys and with one trailing newline."""
    return json.dumps(results, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def read(path: Path) -> Results:
    """The document at `path`.

    Errors: CheckpointError when it is not one, or of a version this package does not know.
    """
    try:
        document: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise CheckpointError(f"{path} cannot be read as results of a comparison: {cause}.") from cause
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise CheckpointError(f"{path} is not results.json of version {VERSION}; move it away or choose another --out.")
    return cast(Results, document)


def mark_spread(rows: Sequence[Row]) -> None:
    """Fill `within_spread_of` of every row, in place: means no farther apart than the larger spread of the
    two.
    """
    for row in rows:
        row["within_spread_of"] = [
            peer["arch"]
            for peer in rows
            if peer is not row and (reach := _reach(row, peer)) is not None and _apart(row, peer) <= reach
        ]


def _reach(row: Row, peer: Row) -> float | None:
    spreads = [row["spread"], peer["spread"]]
    known = [spread for spread in spreads if spread is not None]
    return max(known) if len(known) == len(spreads) else None


def _apart(row: Row, peer: Row) -> float:
    return abs(row["val_bits_per_byte"] - peer["val_bits_per_byte"])
