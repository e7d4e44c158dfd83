"""The comparison as a whole: complete, resumable, refusing what it cannot go on with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from statewell.bench import compare as module
from statewell.bench import results as documents
from statewell.bench.budget import CompareRequest
from statewell.bench.compare import compare
from statewell.bench.events import CompareEvent, RowBegun, RowDone, Training
from statewell.errors import BusyError, CheckpointError, DataError, RequestError
from statewell.train.events import NoticeEvent, StepEvent
from statewell.train.lock import run_lock
from tests.bench.conftest import shrink, write_words

STEPS = 4


def request_for(text, archs=("gpt2", "deltanet"), **changes):
    return CompareRequest(archs=archs, quick=True, data=(text,), **changes)


@dataclass(frozen=True)
class Finished:
    """A comparison of two seeds that ran to its end, with all it told on the way."""

    text: Path
    out: Path
    results: documents.Results
    events: list[CompareEvent]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as monkeypatch:
        text, events = shrink(monkeypatch, folder), []
        results = compare(request_for(text, seeds=2), folder / "out", events.append)
        yield Finished(text, folder / "out", results, events)


def test_a_comparison_gives_every_key_of_every_row_and_writes_both_files(finished):
    results = finished.results
    assert results["finished"]
    assert [row["arch"] for row in results["rows"]] == ["gpt2", "deltanet"]
    for row in results["rows"]:
        assert list(row) == list(documents.Row.__annotations__)
        assert len(row["val_bits_per_byte_seeds"]) == 2
        first, second = row["val_bits_per_byte_seeds"]
        assert row["spread"] == pytest.approx(abs(first - second))
        assert row["val_bits_per_byte"] == pytest.approx((first + second) / 2)
        assert 0 < row["val_bits_per_byte_carried"] < 9
        assert [point["step"] for point in row["curve"]] == list(range(1, STEPS + 1))
        assert row["val_curve"][-1]["tokens"] == STEPS * 1024 == results["settings"]["tokens"]
        assert len(row["samples"]) == 3
        assert Path(row["run"], "model.safetensors").exists()
    assert documents.read(finished.out / "results.json") == results
    page = (finished.out / "report.html").read_text(encoding="utf-8")
    assert "Two memories" in page
    assert "</script>" not in page


def test_gpt2_stops_at_its_positions_and_the_plan_goes_on_marked(finished):
    gpt2, deltanet = finished.results["rows"]
    assert gpt2["limit"] == 1_024
    assert gpt2["time_per_token"][-1] == {"context": 2_048, "seconds": None, "note": "past its 1,024 positions"}
    assert gpt2["memory_measured"] == [64, 1_024]
    assert gpt2["beyond_model_limit"] == [4_096, 16_384, 32_768, 1_048_576]
    assert gpt2["memory_bytes"] == {"1024": 2_097_152, "32768": 67_108_864, "1048576": 2_147_483_648}
    assert deltanet["memory_measured"] == [64, 1_024, 2_048]
    assert (deltanet["limit"], deltanet["beyond_model_limit"]) == (None, [])
    assert len(set(deltanet["memory_bytes"].values())) == 1


def test_every_architecture_and_every_seed_has_the_same_text_described_once(finished):
    seen = finished.events
    assert len([event for event in seen if isinstance(event, NoticeEvent)]) == 1
    assert [event.seeds for event in seen if isinstance(event, RowBegun)] == [2, 2]
    trained = {(event.arch, event.seed) for event in seen if isinstance(event, Training)}
    assert trained == {("gpt2", 0), ("gpt2", 1), ("deltanet", 0), ("deltanet", 1)}


def test_a_finished_comparison_is_read_again_without_training(finished):
    watched = Interrupt()
    assert compare(request_for(finished.text, seeds=2), finished.out, watched) == finished.results
    assert (watched.kept, watched.steps) == (["gpt2", "deltanet"], {})


class Interrupt:
    """Raises KeyboardInterrupt at the given step of `arch`, as a signal outside the step would; counts
    training steps.
    """

    def __init__(self, arch=None, step=None):
        self.at = (arch, step)
        self.steps = {}
        self.kept = []

    def __call__(self, event):
        if isinstance(event, Training) and isinstance(event.event, StepEvent):
            self.steps.setdefault(event.arch, []).append(event.event.step)
            if (event.arch, event.event.step) == self.at:
                raise KeyboardInterrupt
        if isinstance(event, RowDone) and event.kept:
            self.kept.append(event.row["arch"])


def test_an_interrupted_comparison_goes_on_where_it_was_and_ends_the_same(small, tmp_path):
    whole = compare(request_for(small), tmp_path / "whole")
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        compare(request_for(small), out, Interrupt("deltanet", 3))
    halfway = documents.read(out / "results.json")
    assert [row["arch"] for row in halfway["rows"]] == ["gpt2"]
    assert not halfway["finished"]
    assert "1 of 2 rows" in (out / "report.html").read_text(encoding="utf-8")

    watched = Interrupt()
    resumed = compare(request_for(small), out, watched)
    assert watched.kept == ["gpt2"]
    assert watched.steps == {"deltanet": [3, 4]}
    for before, after in zip(whole["rows"], resumed["rows"], strict=True):
        for key in ("val_bits_per_byte", "val_bits_per_byte_carried", "curve", "val_curve", "samples"):
            assert before[key] == after[key]


def test_a_signal_during_a_run_ends_the_comparison_unfinished_and_saved(small, tmp_path):
    def signal_at_the_second_step(event):
        if isinstance(event, Training) and isinstance(event.event, StepEvent) and event.event.step == 2:
            signal.raise_signal(signal.SIGINT)

    results = compare(request_for(small), tmp_path / "out", signal_at_the_second_step)
    assert not results["finished"]
    assert results["rows"] == []
    watched = Interrupt()
    assert compare(request_for(small), tmp_path / "out", watched)["finished"]
    assert watched.steps["gpt2"] == [3, 4]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"archs": ("gpt2",)}, "archs"),
        ({"seeds": 3}, "seeds"),
        ({"match": "total"}, "match"),
        ({"quick": False}, "tokens"),
    ],
    ids=["archs", "seeds", "match", "budget"],
)
def test_a_folder_of_other_settings_is_refused_with_the_way_out(small, tmp_path, changes, named):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        compare(request_for(small), out, Interrupt("gpt2", 1))
    asked = {"archs": ("gpt2", "deltanet"), "quick": True, "data": (small,)} | changes
    with pytest.raises(RequestError, match=rf"{named} = .* another folder with --out"):
        compare(CompareRequest(**asked), out)


def test_a_folder_of_other_text_is_refused(small, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        compare(request_for(small), out, Interrupt("gpt2", 1))
    other = write_words(tmp_path / "text", words=160)
    with pytest.raises(RequestError, match="another folder with --out"):
        compare(request_for(other), out)


def test_a_folder_that_holds_something_else_is_refused_and_left_alone(small, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "letter.txt").write_text("keep me", encoding="utf-8")
    with pytest.raises(RequestError, match="not a comparison"):
        compare(request_for(small), out)
    assert sorted(path.name for path in out.iterdir()) == ["letter.txt", "lock"]


def test_damaged_results_are_refused_and_not_written_over(small, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "results.json").write_text('{"version": 1, "rows": [', encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot be read"):
        compare(request_for(small), out)
    assert (out / "results.json").read_text(encoding="utf-8").endswith("[")


def test_a_folder_in_use_by_another_process_is_refused(small, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with run_lock(out), pytest.raises(BusyError, match="in use"):
        compare(request_for(small), out)


def test_text_that_cannot_be_used_is_refused_before_anything_is_written(small, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    with pytest.raises(DataError, match="empty"):
        compare(request_for(empty), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_corpus_with_markup_shows_as_text_in_the_report(small, tmp_path):
    hostile = write_words(tmp_path / "<script>alert(1)</script>", first_line="<script>alert(2)</script>\n")
    results = compare(request_for(hostile, archs=("gpt2",)), tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert any("<script>alert(2)" in sample["prompt"] for sample in results["rows"][0]["samples"])
    assert "<script" not in page
    assert "&lt;script&gt;alert(2)" in page
    assert "&lt;script&gt;alert(1)" in page


def test_going_on_with_another_version_is_noted_in_the_report(small, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        compare(request_for(small), out, Interrupt("gpt2", 1))
    monkeypatch.setattr(module, "__version__", "9.9.9")
    results = compare(request_for(small), out)
    assert "statewell 9.9.9" in results["notes"][0]
    assert "statewell 9.9.9: speeds" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_killed_comparison_goes_on_with_the_same_figures(small, tmp_path):
    whole = compare(request_for(small, archs=("gpt2",)), tmp_path / "whole")
    out = tmp_path / "out"
    program = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from statewell.bench import budget\n"
        "from statewell.bench.compare import compare\n"
        "budget.QUICK_TOKENS = 4 * 1024\n"
        "compare(budget.CompareRequest(archs=('gpt2',), quick=True, data=(Path(sys.argv[1]),)), Path(sys.argv[2]))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(small), str(out)])
    metrics = out / "gpt2" / "seed0" / "metrics.jsonl"
    began = time.monotonic()
    while not (metrics.exists() and metrics.read_text().count('"step"') >= 2):
        assert child.poll() is None
        assert time.monotonic() - began < 120
    child.kill()
    child.wait()
    resumed = compare(request_for(small, archs=("gpt2",)), out)
    assert resumed["rows"][0]["val_bits_per_byte"] == whole["rows"][0]["val_bits_per_byte"]
    assert resumed["rows"][0]["curve"] == whole["rows"][0]["curve"]
    assert json.loads((out / "results.json").read_text())["finished"]
