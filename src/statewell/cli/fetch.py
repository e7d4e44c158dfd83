"""`statewell fetch`: a release's weights, config and tokenizer; the only verb that uses the network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statewell.cli.terminal import JsonFlag, print_json, say, stderr
from statewell.config.numbers import format_bytes
from statewell.errors import RequestError

if TYPE_CHECKING:
    from statewell.checkpoints.fetch import FetchPlan

EXAMPLE = "statewell fetch openai-community/gpt2 --out ~/models/gpt2"


def fetch(
    repo: Annotated[str, typer.Argument(help="OWNER/NAME of the hub, OWNER/NAME@REVISION, or a preset such as gpt2.")],
    out: Annotated[Path | None, typer.Option(help="Folder; default: NAME here, or in STATEWELL_MODELS.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before downloading.")] = False,
    json: JsonFlag = False,
) -> None:
    """Download a release's safetensors, config and tokenizer files; the size is shown first."""
    from statewell.checkpoints.fetch import plan_fetch

    plan = plan_fetch(repo, None if out is None else out.expanduser())
    say(
        f"{plan.repository} at {plan.commit[:12]}: {len(plan.files)} files, {plan.bytes:,} B "
        f"({format_bytes(plan.bytes)}), into {plan.folder}; {format_bytes(plan.bytes_to_load)} to download."
    )
    if plan.missing:
        _confirm(yes)
        _download(plan)
    _check(plan.folder)
    if json:
        print_json({"path": str(plan.folder), "bytes": plan.bytes, "commit": plan.commit})
    else:
        typer.echo(f"{plan.folder}")


def _confirm(yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise RequestError("Nobody is here to ask; add --yes to download.")
    if not typer.confirm("Download?", err=True):
        raise RequestError("Nothing was downloaded.")


def _download(plan: FetchPlan) -> None:
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from statewell.checkpoints.fetch import download

    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    console = stderr()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=plan.bytes_to_load)
        download(plan, lambda count: bar.advance(task, count))


def _check(folder: Path) -> None:
    from statewell.formats.listing import open_listing

    open_listing(folder).require_whole()
