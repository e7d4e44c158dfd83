"""`statewell compare` from the words typed to what is printed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from statewell.bench.budget import CompareRequest
from statewell.bench.events import Measuring, RowBegun, RowDone, Training
from statewell.cli import compare as command
from statewell.cli.compare_table import Board, final_tables, watch
from statewell.errors import RequestError, StatewellError
from statewell.train.events import EvalEvent, StepEvent
from tests.bench.conftest import small  # noqa: F401  a fixture
from tests.bench.results_fixture import INVENTED, invented_results, invented_row

CONTRACT = [
    "arch",
    "parameters",
    "active_parameters",
    "flops_per_token",
    "val_bits_per_byte",
    "val_bits_per_byte_carried",
    "spread",
    "train_tokens_per_s",
    "decode_tokens_per_s",
    "recall",
    "memory_bytes",
    "memory_measured",
    "limit",
    "run",
]


@pytest.fixture
def statewell(small, tmp_path, monkeypatch):  # noqa: F811
    """Runs `statewell compare --quick` on a little text with the given words; our own errors come out as they are."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command("compare", epilog=command.EXAMPLE)(command.compare)

    def run(*words):
        result = CliRunner().invoke(app, ["--quick", "--data", "text", *(str(word) for word in words)])
        if isinstance(result.exception, StatewellError):
            raise result.exception
        return result

    return run


def step_event(step, total):
    return StepEvent(
        step=step,
        total_steps=total,
        share=step / total,
        tokens=step * 1024,
        loss=2.0,
        gradient_norm=1.0,
        learning_rate=1e-3,
        tokens_per_s=1234.0,
        elapsed_s=1.0,
        seconds_left=61.0,
    )


def drawn(*tables):
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115  lives as long as the console
    console.print(*tables, sep="\n")
    console.file.close()
    return console.export_text()


def test_json_has_the_contracts_keys_and_nothing_else_is_on_stdout(statewell):
    result = statewell("--archs", "gpt2,deltanet", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [row["arch"] for row in document["rows"]] == ["gpt2", "deltanet"]
    for row in document["rows"]:
        assert set(CONTRACT) <= set(row)
        assert set(row["memory_bytes"]) == {"1024", "32768", "1048576"}
        assert row["recall"] is None
        assert Path(row["run"]).is_dir()
    assert Path(document["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "GPT-2: training" in result.stderr
    assert "bits per byte held out" in result.stderr


def test_a_person_gets_tables_and_the_path_of_the_report(statewell):
    result = statewell("--archs", "gpt2")
    assert result.exit_code == 0, result.output
    assert "report: runs/compare-nano-quick-gpt2-text/report.html" in result.stdout
    for word in ("bits/byte", "carried", "281,984", "2.0 MiB", "past the model's limit"):
        assert word in result.stdout
    again = statewell("--archs", "gpt2")
    assert "kept from before" in again.stderr
    assert again.stdout == result.stdout


def test_an_interrupted_comparison_says_how_to_go_on(statewell, monkeypatch):
    def interrupted(request, out, on_event):
        raise KeyboardInterrupt

    monkeypatch.setattr("statewell.bench.compare.compare", interrupted)
    result = statewell("--out", "mine")
    assert result.exit_code == command.INTERRUPTED == 128 + signal.SIGINT
    assert "kept in mine" in result.stderr
    assert "same command" in result.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--archs", "gpt3"], "did you mean 'gpt2'"),
        (["--size", "nanoo"], "did you mean 'nano'"),
        (["--match", "totals"], "did you mean 'total'"),
        (["--seeds", "0"], "--seeds is 0"),
        (["--minutes", "1"], "leave one of them out"),
        (["--data", "nowhere"], "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(statewell, tmp_path, words, named):
    with pytest.raises(RequestError, match=named):
        statewell(*words)
    assert not (tmp_path / "runs").exists()


def test_each_kind_of_request_has_its_own_folder():
    requests = [
        CompareRequest(),
        CompareRequest(quick=True),
        CompareRequest(minutes=2.5),
        CompareRequest(seeds=3),
        CompareRequest(match="total"),
        CompareRequest(size="tiny"),
        CompareRequest(archs=("gpt2", "kimi_k3")),
        CompareRequest(data=(Path("/somewhere/books"),)),
    ]
    folders = [str(command.default_folder(request)) for request in requests]
    assert len(set(folders)) == len(folders)
    assert folders[:2] == ["runs/compare-nano", "runs/compare-nano-quick"]


def test_the_live_table_fills_in_row_by_row():
    board = Board(archs=["gpt2", "deltanet", "kimi_k3"])
    board.take(RowBegun(arch="gpt2", seeds=1))
    board.take(RowDone(row=invented_row("gpt2"), kept=False))
    board.take(RowBegun(arch="deltanet", seeds=1))
    board.take(Training(arch="deltanet", seed=0, event=step_event(30, 40)))
    board.take(Training(arch="deltanet", seed=0, event=EvalEvent(step=30, tokens=30, val_bits_per_byte=3.25)))
    text = drawn(board.table())
    assert "3.077 ± 0.012" in text
    for word in ("75%, 1 min 01 s left", "2.885", "1,234", "3.250", "waiting", "done"):
        assert word in text
    board.take(Measuring(arch="deltanet", what="time"))
    assert "measuring" in drawn(board.table())


def test_final_tables_fit_eighty_columns_without_losing_a_figure():
    text = drawn(*final_tables(invented_results()["rows"]))
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    for word in ("● 2.0 MiB", "× 2.0 GiB", "○ 65.0 KiB", "Kimi Lin.", "1,024", "none", "312,448", "3.031*"):
        assert word in text


def test_on_a_terminal_the_table_is_live_and_disappears(monkeypatch, tmp_path):
    with open(tmp_path / "screen", "w+", encoding="utf-8") as screen:
        console = Console(file=screen, force_terminal=True, width=100)
        monkeypatch.setattr("statewell.cli.compare_table.stderr", lambda: console)
        with watch(CompareRequest(archs=("kimi-k3",))) as on_event:
            on_event(RowDone(row=invented_row("kimi_k3"), kept=False))
        screen.seek(0)
        text = screen.read()
    assert "Kimi K3" in text
    assert "GPT-2" not in text


def test_reading_the_help_needs_no_torch():
    program = (
        "import sys, typer\n"
        "from typer.testing import CliRunner\n"
        "from statewell.cli import compare\n"
        "app = typer.Typer(rich_markup_mode=None)\n"
        "app.command('compare', epilog=compare.EXAMPLE)(compare.compare)\n"
        "result = CliRunner().invoke(app, ['--help'])\n"
        "assert 'statewell compare --quick' in result.output, result.output\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_rows_of_every_architecture_can_be_printed():
    assert drawn(*final_tables([invented_row(arch, seeds=1) for arch in INVENTED])).count("Kimi K3") == 3
