"""`statewell export`: a model as a folder that others open."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statewell.cli.terminal import JsonFlag, print_json, say
from statewell.config.numbers import format_bytes
from statewell.errors import RequestError, nearest

EXAMPLE = "statewell export kimi_k3:nano --to hf --out kimi-k3-nano-hf"
LAYOUTS = ("hf",)


def export(
    model: Annotated[str, typer.Argument(help="A run, a saved model, a checkpoint's folder, or kimi_k3:nano.")],
    to: Annotated[str, typer.Option(help="hf: the layout its family was released in, as Hugging Face folders are.")],
    dtype: Annotated[
        str | None, typer.Option(help="fp32, bf16 or fp16; default: as they are. Gates' constants stay fp32.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The new folder; default: the model's name and -hf.")] = None,
    json: JsonFlag = False,
) -> None:
    """Write a model as config.json, safetensors and tokenizer files that transformers, vLLM or SGLang open."""
    if to not in LAYOUTS:
        raise RequestError(f"'{to}' is no layout to export to; {nearest(to, LAYOUTS)}")
    from statewell.checkpoints.dtypes import dtype_named
    from statewell.checkpoints.export import export as write
    from statewell.checkpoints.load import load, token_ids

    wanted = None if dtype is None else dtype_named(dtype)
    loaded = load(model)
    folder = out or Path(loaded.config.name.replace(":", "-") + "-hf")
    exported = write(loaded, folder, wanted, token_ids(model))
    if json:
        print_json({"model": loaded.config.name, "family": exported.family, "files": [str(f) for f in exported.files]})
        return
    for file in exported.files:
        typer.echo(str(file))
    size = sum(file.stat().st_size for file in exported.files)
    say(f"{loaded.config.name} in the layout of {exported.family}: {format_bytes(size)} in {folder}")
