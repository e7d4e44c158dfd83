"""`statewell inspect`: what lies at a path, told from headers and configs, no tensor read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statewell.cli.terminal import JsonFlag, print_json, printable
from statewell.config.numbers import format_bytes, format_count
from statewell.formats.inspection import Inspection
from statewell.formats.inspection import inspect as inspect_path

EXAMPLE = "statewell inspect ~/models/gpt2"
_SHOWN = 20  # problems, of however many


def inspect(
    path: Annotated[Path, typer.Argument(help="A checkpoint's folder, a safetensors file, an index, or a snapshot.")],
    json: JsonFlag = False,
) -> None:
    """What a checkpoint, run or snapshot holds, and what is wrong with it, without reading a tensor."""
    found = inspect_path(path.expanduser())
    if json:
        print_json(to_json(found))
    else:
        typer.echo(printable("\n".join(describe(found))))


def to_json(found: Inspection) -> dict[str, object]:
    """The inspection as one JSON document."""
    return {
        "kind": found.kind,
        "family": found.family,
        "name": found.name,
        "layers": found.layers,
        "tensors": found.tensors,
        "parameters": found.parameters,
        "dtypes": found.dtypes,
        "bytes": found.bytes,
        "tokens": found.tokens,
        "files": [str(file) for file in found.files],
        "unread": list(found.unread),
        "problems": list(found.problems),
    }


def describe(found: Inspection) -> list[str]:
    """The inspection as lines for a person."""
    family = f"{found.family} {found.kind}" if found.family else f"{found.kind} of no known family"
    files = "1 file" if len(found.files) == 1 else f"{len(found.files):,} files"
    lines = [
        found.kind if found.kind == "snapshot" else family + (f" ({found.name})" if found.name else ""),
        f"  layers       {'not numbered' if found.layers is None else f'{found.layers:,}':>25}",
        f"  tensors      {found.tensors:>25,}   ({files})",
        f"  parameters   {found.parameters:>25,}   ({format_count(found.parameters)})",
        f"  bytes        {found.bytes:>25,} B ({format_bytes(found.bytes)})",
        *(f"    {dtype:<10} {size:>25,} B" for dtype, size in found.dtypes.items()),
    ]
    if found.tokens is not None:
        lines.append(f"  tokens       {', '.join(f'{length:,}' for length in found.tokens)}")
    if found.unread:
        lines.append(f"  config fields that change nothing here: {', '.join(found.unread)}")
    lines += [f"  problem: {problem}" for problem in found.problems[:_SHOWN]]
    if len(found.problems) > _SHOWN:
        lines.append(f"  {len(found.problems) - _SHOWN:,} more problems; all are in --json")
    return lines
