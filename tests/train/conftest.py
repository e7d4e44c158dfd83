"""Small text, a small model and a cache of the test's own, for every training test."""

import dataclasses
import random

import pytest
import torch

from statewell.architectures import preset
from statewell.config.run import TrainConfig

WORDS = (
    "def",
    "class",
    "return",
    "import",
    "self",
    "none",
    "true",
    "while",
    "for",
    "in",
    "if",
    "else",
    "yield",
)


def write_text(folder, files=30, words=200, seed=0):
    """Files of repeatable words, small enough that one file is never a tenth of them all."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    for index in range(files):
        text = " ".join(draw.choices(WORDS, k=words + draw.randrange(words // 4)))
        (folder / f"part{index:02}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("STATEWELL_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def one_thread():
    """Models this small gain nothing from a second thread and lose much when the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def text(tmp_path):
    return write_text(tmp_path / "text")


@pytest.fixture
def small_model():
    """GPT-2 of one layer: the fastest model that has everything a model has."""
    config = preset("gpt2", "nano")
    return dataclasses.replace(config, layers=config.layers[:1])


@pytest.fixture
def short_run():
    return TrainConfig(
        rows=2,
        length=16,
        steps=12,
        eval_every=5,
        eval_tokens=256,
        final_eval_tokens=512,
        checkpoint_every=3,
        seed=7,
    )
