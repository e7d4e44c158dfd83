"""The soak of benchmarks/soak.py: a few seconds of it here, ten minutes of it in benchmarks/results."""

from __future__ import annotations

import pytest
from benchmarks.soak import MODELS, BrokenError, Soak, soak


def test_random_turns_break_nothing_and_memory_comes_back_to_the_byte():
    one = Soak("kimi_k3:nano", seed=1)
    for _ in range(25):
        one.turn()
    one.drain()
    assert one.figures.tokens > 0


def test_a_page_that_nobody_counts_is_found(monkeypatch: pytest.MonkeyPatch):
    one = Soak("gpt2:nano", seed=1)
    monkeypatch.setattr(one.engine.memory, "_free", lambda pages: None)
    for _ in range(25):
        one.turn()
    with pytest.raises(BrokenError, match="memory is"):
        one.drain()


@pytest.mark.slow
def test_twenty_seconds_of_soak():
    result = soak(MODELS, seconds=20, seed=2)
    assert result["resident_bytes"]
