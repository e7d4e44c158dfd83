"""What a row takes from its runs: curves, samples, prompts."""

from __future__ import annotations

import json
import math

import pytest

from statewell.bench.row import CURVE_POINTS, LIBRARY_PROMPTS, choose_prompts, read_curves
from statewell.text import ByteTokenizer
from statewell.train.corpus import open_corpus
from tests.bench.conftest import write_words


def write_metrics(folder, steps):
    lines = [{"event": "step", "step": i, "tokens": 10 * i, "loss": math.log(2) * i} for i in range(1, steps + 1)]
    lines.append({"event": "eval", "step": steps, "tokens": 10 * steps, "val_bits_per_byte": 2.5})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_short_run_keeps_every_step_in_bits(tmp_path):
    write_metrics(tmp_path, 3)
    curve, held_out = read_curves(tmp_path)
    assert [(point["step"], point["tokens"]) for point in curve] == [(1, 10), (2, 20), (3, 30)]
    assert [point["train_bits_per_byte"] for point in curve] == pytest.approx([1, 2, 3])
    assert held_out == [{"tokens": 30, "bits_per_byte": 2.5}]


def test_a_long_run_is_averaged_and_loses_no_step(tmp_path):
    write_metrics(tmp_path, 250)
    curve, _ = read_curves(tmp_path)
    assert len(curve) <= CURVE_POINTS
    assert [point["step"] for point in curve][-2:] == [245, 250]
    assert curve[0]["train_bits_per_byte"] == pytest.approx(sum(range(1, 8)) / 7)


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("STATEWELL_CACHE", str(tmp_path / "cache"))
    return open_corpus([write_words(tmp_path / "text", first_line="  é <script> first line\nsecond")], ByteTokenizer())


def test_prompts_are_the_first_words_of_held_out_files_or_pythons_own(corpus):
    assert choose_prompts(corpus, library=True) == LIBRARY_PROMPTS
    assert set(choose_prompts(corpus, library=False)) == {"é <script> first line"}


def test_a_prompt_never_ends_inside_a_character(tmp_path, monkeypatch):
    monkeypatch.setenv("STATEWELL_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "one.txt"
    text.write_text("é" * 5_000, encoding="utf-8")
    (prompt,) = choose_prompts(open_corpus([text], ByteTokenizer()), library=False)
    assert set(prompt) == {"é"}
