"""A comparison small enough for a test: a little text, few tokens, few steps measured."""

from __future__ import annotations

import functools
import random

import pytest

from statewell.bench import budget, row
from statewell.bench.measure import measure

WORDS = (
    "def",
    "class",
    "return",
    "self",
    "import",
    "None",
    "for",
    "in",
    "while",
    "yield",
    "<b>",
    "</script>",
)


def write_words(folder, files=30, words=150, first_line=""):
    """Files of repeatable words below `folder`, none of them a tenth of all."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for index in range(files):
        (folder / f"part{index:02}.txt").write_text(
            first_line + " ".join(draw.choices(WORDS, k=words)), encoding="utf-8"
        )
    return folder


def shrink(monkeypatch, folder):
    """Shrink every budget until `monkeypatch` is undone; a little text in `folder` is returned."""
    monkeypatch.setenv("STATEWELL_CACHE", str(folder / "cache"))
    monkeypatch.setattr(budget, "QUICK_TOKENS", 4 * 1024)
    monkeypatch.setattr(row, "measure", functools.partial(measure, contexts=(64, 1_024, 2_048), steps=2, rounds=1))
    monkeypatch.setattr(row, "CARRIED_TOKENS", 2_048)
    monkeypatch.setattr(row, "SAMPLE_TOKENS", 8)
    return write_words(folder / "text")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Small budgets for one test; the folder of text."""
    return shrink(monkeypatch, tmp_path)
