"""The `statewell` command: its verbs, and the one place where errors become a sentence and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from statewell import __version__
from statewell.cli import bench, chat, compare, doctor, export, fetch, generate, inspect, plan, serve, train
from statewell.cli.terminal import say
from statewell.errors import StatewellError

VERBS = {
    "plan": (plan.plan, plan.EXAMPLE),
    "train": (train.train, train.EXAMPLE),
    "compare": (compare.compare, compare.EXAMPLE),
    "generate": (generate.generate, generate.EXAMPLE),
    "chat": (chat.chat, chat.EXAMPLE),
    "serve": (serve.serve, serve.EXAMPLE),
    "export": (export.export, export.EXAMPLE),
    "inspect": (inspect.inspect, inspect.EXAMPLE),
    "fetch": (fetch.fetch, fetch.EXAMPLE),
    "bench": (bench.bench, bench.EXAMPLE),
    "doctor": (doctor.doctor, doctor.EXAMPLE),
}

# Read once, when torch is loaded. Threads that spin while they wait make a shared machine crawl: with three other
# processes on two cores, nano training steps took 3 to 27 times as long as with threads that sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"statewell {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: statewell compare --quick")
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The six memories of language models: plan, train, compare and generate, with every byte accounted for.

    Add --debug to any command to see the traceback of an error.
    """


for name, (verb, example) in VERBS.items():
    app.command(name, epilog=f"Example: {example}")(verb)


def run() -> None:
    """Run the command line; 0 done, 1 the work failed, 2 the request was wrong."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(arguments, prog_name="statewell")
    except StatewellError as error:
        if debug:
            raise
        say(f"error: {error}")
        sys.exit(error.exit_code)
