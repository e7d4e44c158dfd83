"""The tables of `compare`: one that fills in while the rows train, and the two that are printed at the end.

On a terminal the live table redraws itself; anywhere else each stage is one line. Start with `watch`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich import box
from rich.live import Live
from rich.table import Table

from statewell import architectures
from statewell.bench import words
from statewell.bench.budget import CompareRequest
from statewell.bench.events import CompareEvent, Measuring, OnCompareEvent, RowBegun, RowDone, Training
from statewell.bench.results import MEMORY_CONTEXTS, Row
from statewell.cli.terminal import say, stderr
from statewell.train.events import NoticeEvent, StepEvent


@contextmanager
def watch(request: CompareRequest) -> Iterator[OnCompareEvent]:
    """What to hand to `compare` as its `on_event`, drawing on stderr while open."""
    if not stderr().is_terminal:
        yield _say_stages
        return
    board = Board(archs=_named(request))
    with Live(board.table(), console=stderr(), refresh_per_second=4, transient=True) as live:

        def on_event(event: CompareEvent) -> None:
            if isinstance(event, NoticeEvent):
                live.console.print(event.message, markup=False)
            board.take(event)
            live.update(board.table())

        yield on_event


def _named(request: CompareRequest) -> list[str]:
    asked = {name.replace("-", "_") for name in request.archs}
    return [arch for arch in architectures.ARCHITECTURES if arch in asked or not asked]


def _say_stages(event: CompareEvent) -> None:
    """The stages as plain lines, for logs and pipes."""
    if isinstance(event, NoticeEvent):
        say(event.message)
    elif isinstance(event, RowBegun):
        say(f"{words.title(event.arch)}: training")
    elif isinstance(event, Training) and _is_tenth(event):
        say(f"{words.title(event.arch)}: {_progress(event)}")
    elif isinstance(event, RowDone):
        row = event.row
        training, decode = words.count(row["train_tokens_per_s"]), words.count(row["decode_tokens_per_s"])
        say(
            f"{words.title(row['arch'])}: {words.held_out(row)} bits per byte held out, "
            f"training {training} tokens/s, decode {decode} tokens/s"
            f"{', kept from before' if event.kept else ''}"
        )


def _is_tenth(event: Training) -> bool:
    step = event.event
    if not isinstance(step, StepEvent) or not step.total_steps:
        return False
    return step.step % max(1, step.total_steps // 10) == 0


def _progress(event: Training) -> str:
    step = event.event
    if not isinstance(step, StepEvent):
        return f"held out {words.bits(step.val_bits_per_byte)} bits per byte"
    seed = f"seed {event.seed}, " if event.seed else ""
    return (
        f"{seed}{100 * step.share:.0f}%, loss {words.bits(step.loss / math.log(2))} bits per byte, "
        f"{words.count(step.tokens_per_s)} tokens/s, {words.duration(step.seconds_left)} left"
    )


@dataclass(kw_only=True)
class Board:
    """Where every row stands. states: what the last column says; running: last step of the row at work."""

    archs: list[str]
    rows: dict[str, Row] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    steps: dict[str, StepEvent] = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)

    def take(self, event: CompareEvent) -> None:
        """Remember what `event` says."""
        if isinstance(event, RowBegun):
            self.states[event.arch] = "starting"
        elif isinstance(event, Measuring):
            self.states[event.arch] = "measuring"
        elif isinstance(event, RowDone):
            self.rows[event.row["arch"]] = event.row
            self.states[event.row["arch"]] = "done"
        elif isinstance(event, Training):
            self._take_training(event)

    def _take_training(self, event: Training) -> None:
        step = event.event
        if isinstance(step, StepEvent):
            self.steps[event.arch] = step
            seed = f"seed {event.seed}, " if event.seed else ""
            self.states[event.arch] = f"{seed}{100 * step.share:.0f}%, {words.duration(step.seconds_left)} left"
        else:
            self.held_out[event.arch] = step.val_bits_per_byte

    def table(self) -> Table:
        """The board as it stands."""
        table = _table("", ["bits/byte", "loss", "train\ntok/s", "decode\ntok/s"])
        table.add_column("", no_wrap=True, min_width=18)
        for arch in self.archs:
            table.add_row(words.title(arch), *self._cells(arch), self.states.get(arch, "waiting"))
        return table

    def _cells(self, arch: str) -> list[str]:
        row, step = self.rows.get(arch), self.steps.get(arch)
        loss = words.bits(step.loss / math.log(2)) if step else ""
        if row is not None:
            speeds = [words.count(row["train_tokens_per_s"]), words.count(row["decode_tokens_per_s"])]
            return [f"[bold]{words.held_out(row)}[/bold]", loss, *speeds]
        held_out = f"[dim]{words.bits(self.held_out[arch])}[/dim]" if arch in self.held_out else ""
        return [held_out, loss, words.count(step.tokens_per_s) if step else "", ""]


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title=title or None,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        pad_edge=False,
        min_width=68,
    )
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def final_tables(rows: Sequence[Row]) -> tuple[Table, ...]:
    """The rows as three tables, each at most 80 columns wide: quality and speed, memory, size."""
    return _quality(rows), _memory(rows), _sizes(rows)


def _quality(rows: Sequence[Row]) -> Table:
    table = _table("Held-out bits per byte, and tokens per second", ["bits/byte", "carried", "training", "decode"])
    best = min(row["val_bits_per_byte"] for row in rows)
    alike = any(row["within_spread_of"] for row in rows)
    if alike:
        table.add_column("within the spread of")
    for row in rows:
        held_out = words.held_out(row)
        cells = [
            words.title(row["arch"]),
            f"[bold]{held_out}[/bold]" if row["val_bits_per_byte"] == best else held_out,
            words.bits(row["val_bits_per_byte_carried"]) + ("*" if row["carried_truncated_at"] else ""),
            words.count(row["train_tokens_per_s"]),
            words.count(row["decode_tokens_per_s"]),
        ]
        peers = words.listing([words.title(peer, short=True) for peer in row["within_spread_of"]])
        table.add_row(*cells, *([peers] if alike else []))
    cut_at = sorted({row["carried_truncated_at"] for row in rows if row["carried_truncated_at"]})
    if cut_at:
        table.caption = f"* only the first {words.listing([f'{at:,}' for at in cut_at])} tokens of each file: its limit"
    return table


def _memory(rows: Sequence[Row]) -> Table:
    columns = [*(f"{context:,}" for context in MEMORY_CONTEXTS), "limit"]
    table = _table("Memory of one sequence, by tokens remembered (fp32)", columns)
    for row in rows:
        limit = words.count(row["limit"]) if row["limit"] else "none"
        table.add_row(words.title(row["arch"]), *(_bytes(row, context) for context in MEMORY_CONTEXTS), limit)
    table.caption = "● measured here   ○ planned   × planned, past the model's limit"
    return table


def _bytes(row: Row, context: int) -> str:
    mark = "●" if context in row["memory_measured"] else "×" if context in row["beyond_model_limit"] else "○"
    return f"{mark} {words.size(row['memory_bytes'][str(context)])}"


def _sizes(rows: Sequence[Row]) -> Table:
    table = _table("Parameters, and FLOPs per token", ["total", "active", "compared", "FLOPs"])
    for row in rows:
        counts = [words.count(row[name]) for name in ("parameters", "active_parameters", "compared_parameters")]
        table.add_row(words.title(row["arch"]), *counts, words.rounded(row["flops_per_token"]))
    table.caption = "compared: active, without embeddings and head"
    return table
