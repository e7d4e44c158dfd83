"""Fetching from a hub on this machine: what is taken, what is asked, how an interrupted download goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save

import statewell as sw
from statewell.checkpoints.fetch import FetchPlan, download, is_wanted, plan_fetch
from statewell.errors import MissingExtraError, RequestError, StatewellError
from statewell.formats.inspection import inspect
from tests.checkpoints.hub_fixture import COMMIT, Hub, serving

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "gpt2"


@pytest.fixture
def hub():
    files = {name: (GOLDEN / name).read_bytes() for name in ("config.json", "model.safetensors")}
    files |= {
        "tokenizer.json": b"{}",
        "pytorch_model.bin": b"\x80\x04.",
        "modeling.py": b"raise",
        "onnx/model.safetensors": b"",
    }
    with serving(Hub(files)) as hub:
        yield hub


def get(hub: Hub, folder: Path, asked: str = "owner/name") -> tuple[FetchPlan, int]:
    """Fetch; the plan and the bytes that came."""
    plan = plan_fetch(asked, folder, hub.endpoint)
    came: list[int] = []
    download(plan, came.append, hub.endpoint)
    return plan, sum(came)


def test_weights_config_and_tokenizer_are_taken_and_nothing_else(hub, tmp_path):
    plan, came = get(hub, tmp_path / "m")
    taken = {"config.json", "model.safetensors", "tokenizer.json"}
    assert {file.name for file in plan.files} == taken
    assert {path.name for path in (tmp_path / "m").iterdir()} == {*taken, ".fetched.json"}
    assert plan.bytes == plan.bytes_to_load == came == sum(len(hub.files[name]) for name in taken)
    assert plan.commit == COMMIT
    assert all((tmp_path / "m" / name).read_bytes() == hub.files[name] for name in taken)
    assert inspect(tmp_path / "m").family == "gpt2"


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "a/x.safetensors", ".x.safetensors", "a.bin", "a.py", "x.json", "C:\\x.safetensors"]
)
def test_names_with_folders_code_and_pickles_are_not_wanted(name):
    assert not is_wanted(name)


def test_what_is_there_is_not_downloaded_again_and_what_changed_is(hub, tmp_path):
    get(hub, tmp_path)
    hub.asked.clear()
    plan, came = get(hub, tmp_path, "owner/name@v1")
    assert (plan.missing, came, hub.asked) == ((), 0, [])
    hub.files["tokenizer.json"] = b"[]"  # of the same size
    assert [file.name for file in get(hub, tmp_path)[0].missing] == ["tokenizer.json"]
    (tmp_path / "config.json").unlink()
    assert [file.name for file in get(hub, tmp_path)[0].missing] == ["config.json"]
    assert (tmp_path / "tokenizer.json").read_bytes() == b"[]"


def test_an_interrupted_download_goes_on_where_it_was(hub, tmp_path):
    whole = len(hub.files["model.safetensors"])
    hub.cut["model.safetensors"] = 1000

    def interrupt(count: int) -> None:
        if hub.asked[-1][0] == "model.safetensors":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(plan_fetch("owner/name", tmp_path, hub.endpoint), interrupt, hub.endpoint)
    assert not (tmp_path / "model.safetensors").exists()
    plan = plan_fetch("owner/name", tmp_path, hub.endpoint)
    assert plan.bytes_to_load == whole - 1000
    hub.cut.clear()
    hub.asked.clear()
    assert get(hub, tmp_path)[1] == whole - 1000
    assert hub.asked == [("model.safetensors", "bytes=1000-")]
    assert (tmp_path / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert not list(tmp_path.glob(".*.part"))


def test_a_connection_that_breaks_is_taken_up_again_and_given_up_without_progress(hub, tmp_path):
    hub.cut["model.safetensors"] = len(hub.files["model.safetensors"]) // 3 + 1
    get(hub, tmp_path / "a")
    assert [name for name, _ in hub.asked].count("model.safetensors") == 3
    hub.cut["model.safetensors"] = 0
    with pytest.raises(StatewellError, match=r"fetch again to go on"):
        get(hub, tmp_path / "b")


def test_a_server_without_ranges_starts_again(hub, tmp_path):
    hub.cut["model.safetensors"], hub.ranges = 1000, False
    with pytest.raises(StatewellError, match="fetch again"):
        get(hub, tmp_path)
    hub.cut.clear()
    get(hub, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_bytes_that_are_not_what_was_announced_do_not_take_their_place(hub, tmp_path):
    hub.lies.add("model.safetensors")
    with pytest.raises(StatewellError, match="came with SHA-256"):
        get(hub, tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("owner/other", "no such repository"),
        ("owner/name@v9", "no such revision"),
        ("../name", "is no repository"),
        ("a/b/c", "is no repository"),
        ("", "is no repository"),
    ],
)
def test_what_is_not_there_is_refused(hub, tmp_path, asked, words):
    with pytest.raises(RequestError, match=words):
        plan_fetch(asked, tmp_path, hub.endpoint)


def test_a_release_of_pickles_is_refused(hub, tmp_path):
    del hub.files["model.safetensors"]
    with pytest.raises(RequestError, match="has no safetensors files"):
        plan_fetch("owner/name", tmp_path, hub.endpoint)


def test_a_server_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(StatewellError, match="could not be reached"):
        plan_fetch("owner/name", tmp_path, "http://127.0.0.1:9")


def test_without_the_extra_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"statewell\[fetch\]"):
        plan_fetch("owner/name", tmp_path)


def run(hub: Hub, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": str(folder / "home"),
        "PYTHONPATH": str(Path(sw.__file__).resolve().parents[1]),
    }
    command = [sys.executable, "-c", "from statewell.cli.main import run; run()", "fetch", *arguments]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def test_the_verb_shows_the_size_and_asks_before_it_downloads(hub, tmp_path):
    done = run(hub, tmp_path, "owner/name")
    assert done.returncode == 2
    assert "3 files" in done.stderr
    assert "add --yes" in done.stderr
    assert not (tmp_path / "name").exists()
    done = run(hub, tmp_path, "owner/name", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["path"] == "name"
    assert document["bytes"] == sum(
        len(hub.files[name]) for name in ("config.json", "model.safetensors", "tokenizer.json")
    )
    assert (tmp_path / "name" / "model.safetensors").is_file()


def test_the_verb_refuses_a_release_that_is_not_whole(hub, tmp_path):
    hub.files["model.safetensors"] = save({})[:-1]
    done = run(hub, tmp_path, "owner/name", "--yes")
    assert done.returncode == 1
    assert "cut short" in done.stderr
