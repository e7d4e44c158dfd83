"""`statewell train`: one model from random or trained weights, on the text given or the standard library's source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statewell.cli.terminal import JsonFlag, print_json, say, stderr
from statewell.errors import RequestError

if TYPE_CHECKING:
    from statewell.config.layers import ModelConfig
    from statewell.config.run import TrainConfig
    from statewell.models.backbone import LanguageModel
    from statewell.train.events import Event, OnEvent
    from statewell.train.run import TrainResult

EXAMPLE = "statewell train --arch kimi_k3 --size nano --minutes 2 --out runs/k3"
INTERRUPTED = 130  # what shells report for a command ended by Ctrl-C


@dataclass(frozen=True, kw_only=True)
class _Request:
    """The flags as given; None and empty where they were not."""

    arch: str | None
    size: str | None
    data: tuple[Path, ...]
    out: Path | None
    config_file: Path | None
    settings: tuple[str, ...]
    flags: Mapping[str, object]
    start: str | None


def train(
    arch: Annotated[
        str | None,
        typer.Option(help="gpt2, linear_attention, deltanet, gated_deltanet, kimi_linear or kimi_k3."),
    ] = None,
    size: Annotated[str | None, typer.Option(help="nano, tiny (the default) or small.")] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="MODEL", help="Go on from trained weights: a run, a checkpoint, kimi_k3:nano."),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Text files and folders; default: this Python's standard library source."),
    ] = None,
    more: Annotated[list[Path] | None, typer.Argument(hidden=True)] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; default: runs/ARCH-SIZE, or NAME-continued.")
    ] = None,
    steps: Annotated[str | None, typer.Option(help="Optimiser steps, such as 500 or 2k; default: 1000.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Wall-clock minutes instead of steps.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of training settings.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One training setting, such as length=512; repeatable."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Decides initial weights and the order of the text; default: 0.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    json: JsonFlag = False,
) -> None:
    """Train a model; kill it at any moment and --resume goes on with the same losses to the last bit."""
    if more and not data:
        raise RequestError(f"'{more[0]}' stands alone; name text with --data {more[0]}.")
    if steps is not None and minutes is not None:
        raise RequestError("--steps and --minutes are two budgets; give one of them.")
    flags: dict[str, object] = {"steps": steps, "minutes": minutes, "seed": seed}
    request = _Request(
        arch=arch,
        size=size,
        data=(*(data or ()), *(more or ())),
        out=out,
        config_file=config,
        settings=tuple(setting or ()),
        flags={key: value for key, value in flags.items() if value is not None},
        start=start,
    )
    result = _run(request, resume)
    if json:
        print_json(_document(result))
    else:
        typer.echo("\n".join(_describe(result)))
    if not result.finished:
        say(
            f"Interrupted after step {result.step:,} and saved; go on with: statewell train --out {result.run} --resume"
        )
        raise typer.Exit(INTERRUPTED)


def _run(request: _Request, resume: bool) -> TrainResult:
    from statewell.train.run import train as run_training

    start = _trained(request, resume)
    model, out = _model_and_folder(request, resume, start)
    training, data = _training_and_text(request, model, out, resume)
    tokenizer = None if start is None else start.tokenizer
    with _shown() as on_event:
        return run_training(
            model, training, out, data=data, resume=resume, on_event=on_event, tokenizer=tokenizer, start=start
        )


def _trained(request: _Request, resume: bool) -> LanguageModel | None:
    """The model of --from, its weights in fp32 as everything here trains."""
    if request.start is None:
        return None
    if resume:
        raise RequestError("--resume goes on with the weights of the run; leave --from out.")
    if request.arch is not None or request.size is not None:
        raise RequestError("--from brings its own model; leave --arch and --size out.")
    import torch

    from statewell.checkpoints.load import load

    start = load(request.start, dtype=torch.float32, experts="dense")  # what is packed does not train
    if start.tokenizer is None:
        raise RequestError(f"{request.start} has no tokenizer, so no text can be read for it; add its tokenizer files.")
    return start


def _model_and_folder(request: _Request, resume: bool, start: LanguageModel | None) -> tuple[ModelConfig, Path]:
    """The model and where it trains; a resumed run knows its own model."""
    from statewell.architectures import ARCHITECTURES, preset
    from statewell.config.layers import Storage

    if start is not None:
        model = replace(start.config, storage=Storage())  # it is stored as it is trained from here on
        return model, request.out or Path("runs", f"{model.name.replace(':', '-')}-continued")
    if request.arch is not None:
        model = preset(request.arch, request.size or "tiny")
        return model, request.out or Path("runs", model.name.replace(":", "-"))
    if not resume or request.out is None:
        needs = "--out RUN" if resume else "--arch or --from"
        raise RequestError(f"train needs {needs}; architectures: {', '.join(ARCHITECTURES)}.")
    if request.size is not None:
        raise RequestError("--size alone says nothing; a resumed run knows its own model.")
    from statewell.train.folder import read_request

    return read_request(request.out).model, request.out


def _training_and_text(
    request: _Request, model: ModelConfig, out: Path, resume: bool
) -> tuple[TrainConfig, tuple[Path, ...]]:
    """Settings and text; whatever a resumed run is not told anew is as it was."""
    from statewell.config.load_run import load_train_config
    from statewell.config.run import continued_defaults, train_defaults
    from statewell.train.folder import read_request

    stored = read_request(out) if resume else None
    size = model.name.partition(":")[2]
    fresh = train_defaults(size) if request.start is None else continued_defaults(size)
    base = stored.train if stored else fresh
    training = load_train_config(base, file=request.config_file, settings=request.settings, flags=request.flags)
    return training, request.data or (stored.data if stored else ())


@contextmanager
def _shown() -> Iterator[OnEvent]:
    """Draw events on stderr: a bar on a terminal, else one line for each evaluation."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = stderr()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=1.0, figures="")
        bits = ""

        def show(event: Event) -> None:
            nonlocal bits
            from statewell.train.events import EvalEvent, NoticeEvent, StepEvent

            if isinstance(event, StepEvent):
                pace = f"{event.tokens_per_s:,.0f} tok/s  {_clock(event.seconds_left)} left"
                figures = f"loss {event.loss:.3f}{bits}  {pace}"
                bar.update(task, completed=event.share, description=f"step {event.step:,}", figures=figures)
            elif isinstance(event, EvalEvent):
                bits = f"  {event.val_bits_per_byte:.3f} bits/byte"
                if not console.is_terminal:
                    say(
                        f"step {event.step:,}: {event.tokens:,} tokens, "
                        f"{event.val_bits_per_byte:.4f} bits per byte held out"
                    )
            elif isinstance(event, NoticeEvent):
                console.print(event.message, markup=False, soft_wrap=True)

        yield show


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _document(result: TrainResult) -> dict[str, object]:
    return {
        "run": str(result.run),
        "step": result.step,
        "tokens": result.tokens,
        "train_loss": result.train_loss,
        "val_bits_per_byte": result.val_bits_per_byte,
        "tokens_per_s": result.tokens_per_s,
        "parameters": result.parameters,
        "finished": result.finished,
    }


def _describe(result: TrainResult) -> list[str]:
    bits = "not evaluated yet" if result.val_bits_per_byte is None else f"{result.val_bits_per_byte:.4f}"
    loss = "none yet" if result.train_loss is None else f"{result.train_loss:.4f} nats"
    return [
        f"run              {result.run}",
        f"steps            {result.step:,} ({result.tokens:,} tokens, {result.tokens_per_s:,.0f} tok/s)",
        f"parameters       {result.parameters:,}",
        f"training loss    {loss}",
        f"bits per byte    {bits} (held out)",
    ]
