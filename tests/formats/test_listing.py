"""Listings: one file, an index, a folder; and every way in which an index and its files can disagree."""

from __future__ import annotations

import json

import pytest

from statewell.errors import CheckpointError
from statewell.formats.listing import open_listing
from tests.formats.files_fixture import described, write_file, write_index, write_shards

FIRST = "model-00001-of-00002.safetensors"


@pytest.fixture
def sharded(tmp_path):
    write_index(tmp_path, write_shards(tmp_path), total_size=24)
    return tmp_path


def test_a_folder_its_index_and_one_of_its_files_are_listed(sharded):
    for path in (sharded, sharded / "model.safetensors.index.json"):
        listing = open_listing(path)
        listing.require_whole()
        assert listing.problems == ()
        assert {name: stored.path.name[:11] for name, stored in listing.tensors.items()} == {
            "x": "model-00001",
            "y": "model-00001",
            "z": "model-00002",
        }
        assert listing.tensors["z"].entry.shape == (2, 2)
        assert [file.name[:11] for file in listing.files] == ["model-00001", "model-00002"]
    assert set(open_listing(sharded / FIRST).tensors) == {"x", "y"}


def test_a_single_file_wins_over_an_index(sharded):
    write_file(sharded / "model.safetensors", {"only": described("U8", [1], 0, 1)}, 1)
    assert set(open_listing(sharded).tensors) == {"only"}


def change_map(folder, change):
    path = folder / "model.safetensors.index.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


WRONG = {
    "a shard is missing": (lambda f: (f / FIRST).unlink(), f"{FIRST} is missing: .*2 tensors there, first x"),
    "a shard is cut": (
        lambda f: (f / FIRST).write_bytes((f / FIRST).read_bytes()[:-1]),
        f"{FIRST}: tensor y .*cut short by 1",
    ),
    "an absent file is named": (
        lambda f: change_map(f, lambda d: d["weight_map"].update(q="q.safetensors")),
        "q.safetensors is missing",
    ),
    "a way up": (
        lambda f: change_map(f, lambda d: d["weight_map"].update(q="../q.safetensors")),
        "puts tensor q into .*beside it",
    ),
    "an absolute path": (
        lambda f: change_map(f, lambda d: d["weight_map"].update(q="/q.safetensors")),
        "puts tensor q into",
    ),
    "another folder": (
        lambda f: change_map(f, lambda d: d["weight_map"].update(q="a\\q.safetensors")),
        "puts tensor q into",
    ),
    "a pickle": (lambda f: change_map(f, lambda d: d["weight_map"].update(q="q.bin")), "puts tensor q into q.bin"),
    "a file that is a number": (
        lambda f: change_map(f, lambda d: d["weight_map"].update(q=7)),
        "map tensor q .* 7 found",
    ),
    "a tensor its file lacks": (
        lambda f: change_map(f, lambda d: d["weight_map"].update(q=FIRST)),
        f"{FIRST}: tensor q is missing",
    ),
    "a tensor it does not name": (
        lambda f: change_map(f, lambda d: d["weight_map"].pop("x")),
        f"{FIRST}: tensor x is here",
    ),
    "a tensor put elsewhere": (
        lambda f: change_map(f, lambda d: d["weight_map"].update(x=FIRST.replace("1-of", "2-of"))),
        "00002-of-00002.safetensors: tensor x is missing",
    ),
    "a wrong total": (
        lambda f: change_map(f, lambda d: d["metadata"].update(total_size=25)),
        "total_size is 25, .* 24 bytes",
    ),
    "a total of text": (lambda f: change_map(f, lambda d: d["metadata"].update(total_size="24")), "total_size is 24, "),
    "no map": (lambda f: change_map(f, lambda d: d.pop("weight_map")), "should hold a weight_map"),
    "a list of names": (lambda f: change_map(f, lambda d: d.update(weight_map=["x"])), "should hold a weight_map"),
    "one name in two files": (
        lambda f: write_file(f / FIRST.replace("1-of", "2-of"), {"x": described("U8", [8], 0, 8)}, 8),
        "tensor z is missing|tensor x is in",
    ),
    "no JSON": (lambda f: (f / "model.safetensors.index.json").write_text("{"), "index.json is not JSON"),
    "a name given twice": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"x": "a", "x": "b"}}'),
        "index.json is not JSON .the name x is there twice",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_index_and_files_that_disagree_are_refused(sharded, wrong):
    change, words = WRONG[wrong]
    change(sharded)
    listing = open_listing(sharded)
    assert listing.problems
    with pytest.raises(CheckpointError, match=words):
        listing.require_whole()


def test_a_total_written_as_a_float_or_left_out_is_fine(sharded):
    change_map(sharded, lambda d: d["metadata"].update(total_size=24.0))
    open_listing(sharded).require_whole()
    change_map(sharded, lambda d: d.pop("metadata"))
    open_listing(sharded).require_whole()


def test_a_file_that_changes_after_it_was_listed_is_refused(sharded):
    listing = open_listing(sharded)
    with open(sharded / FIRST, "ab") as opened:
        opened.write(b"x")
    with pytest.raises(CheckpointError, match="changed while it was used"):
        listing.require_whole()


def test_files_without_their_index_are_listed_with_that_problem(tmp_path):
    write_shards(tmp_path)
    listing = open_listing(tmp_path)
    assert set(listing.tensors) == {"x", "y", "z"}
    assert "no model.safetensors.index.json" in listing.problems[0]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_a_pickle_is_refused_unopened_with_the_way_out(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x04.")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(CheckpointError, match=r"is a pickle, which can run code .*statewell fetch"):
            open_listing(path)


def test_a_folder_without_tensors_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors file"):
        open_listing(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_listing(tmp_path / "absent")
