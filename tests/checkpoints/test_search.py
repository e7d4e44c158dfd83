"""Where presets are found, and what is said when they are not."""

from __future__ import annotations

import json
import shutil

import pytest

import statewell as sw
from statewell.checkpoints.search import find
from statewell.errors import CheckpointError, RequestError
from tests.models.golden import GOLDEN

SNAPSHOT = "0123456789abcdef"


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A search path of two folders of the test's own and an empty cache."""
    for name in ("one", "two", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("STATEWELL_MODELS", f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return tmp_path


def put(folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_a_preset_is_found_by_its_name_in_the_first_folder_that_has_it(nowhere):
    second = put(nowhere / "two" / "gpt2-medium")
    assert find("gpt2_medium").folder == second
    assert find("gpt2-medium").preset == "gpt2-medium"
    assert find("gpt2-medium").folder != put(nowhere / "one" / "gpt2-medium") or find("gpt2-medium").folder != second


def test_a_preset_is_found_by_its_repository_in_a_folder_and_in_the_cache(nowhere):
    cached = put(nowhere / "home" / "hub" / "models--openai-community--gpt2" / "snapshots" / SNAPSHOT)
    assert find("gpt2").folder == cached
    other = put(cached.parent / "00")
    assert find("gpt2").folder == other
    refs = cached.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text(SNAPSHOT)
    assert find("gpt2").folder == cached
    beside = put(nowhere / "one" / "openai-community" / "gpt2")
    assert find("gpt2").folder == beside


def test_a_preset_that_is_nowhere_says_where_it_was_looked_for(nowhere):
    with pytest.raises(RequestError) as caught:
        sw.load("kimi-k3")
    for words in (str(nowhere / "one"), str(nowhere / "two"), str(nowhere / "home" / "hub"), "moonshotai/Kimi-K3"):
        assert words in str(caught.value)


def test_another_model_under_a_presets_name_is_not_taken_for_it(nowhere):
    shutil.copytree(GOLDEN / "gpt2", nowhere / "one" / "gpt2")
    with pytest.raises(CheckpointError, match="was taken for gpt2, and its config"):
        sw.load("gpt2")
    # by its path it is what its config says
    assert sw.load(nowhere / "one" / "gpt2").config.width == 32


def test_a_folders_name_says_nothing_about_its_family(tmp_path):
    folder = tmp_path / "gpt2-really"
    shutil.copytree(GOLDEN / "kimi_k3_dense", folder)
    assert sw.load(folder).config.architecture == "kimi_k3"
    # K3's text side alone calls itself kimi_linear
    document = json.loads((folder / "config.json").read_text())["text_config"]
    assert document["model_type"] == "kimi_linear"
    (folder / "config.json").write_text(json.dumps(document))
    assert sw.load(folder).config.architecture == "kimi_k3"
