import hashlib
import json
import os

import numpy as np
import pytest

from statewell.errors import DataError, RequestError
from statewell.text import ByteTokenizer
from statewell.train import corpus as corpus_module
from statewell.train.corpus import cache_folder, open_corpus, require_windows
from tests.train.conftest import write_text


class WideTokenizer(ByteTokenizer):
    """Bytes with a vocabulary that needs two bytes an id."""

    @property
    def vocab(self):
        return 300

    def to_json(self):
        return {"kind": "wide"}


def open_text(*paths):
    return open_corpus(paths, ByteTokenizer())


def files_of(stream):
    return [
        bytes(stream.ids[start : after - 1].astype(np.uint8))
        for start, after in zip(stream.bounds[:-1], stream.bounds[1:], strict=True)
    ]


def test_every_file_is_on_one_side_whole_between_separators(text):
    corpus = open_text(text)
    contents = {path.read_bytes() for path in text.iterdir()}
    train, held_out = files_of(corpus.train), files_of(corpus.held_out)
    assert set(train) | set(held_out) == contents
    assert len(train) + len(held_out) == len(contents)
    share = sum(map(len, held_out)) / sum(map(len, contents))
    assert 0.05 <= share <= 0.10
    for stream in (corpus.train, corpus.held_out):
        assert stream.ids.dtype == np.uint8
        assert np.count_nonzero(stream.ids == 0) == stream.files + 1
        assert not stream.ids[stream.bounds - 1].any()


def test_held_out_files_are_in_the_order_of_their_hashes(tmp_path):
    corpus = open_text(write_text(tmp_path / "many", files=200, words=20))
    digests = [hashlib.sha256(content).hexdigest() for content in files_of(corpus.held_out)]
    assert len(digests) > 10
    assert digests == sorted(digests)


def test_the_split_depends_on_content_alone(text, tmp_path):
    first = open_text(text)
    moved = tmp_path / "moved"
    text.rename(moved)
    again = open_text(moved)
    assert again.key == first.key
    assert files_of(again.held_out) == files_of(first.held_out)


def test_one_file_is_split_by_position_between_characters(tmp_path):
    text = "€" * 1000 + "x"  # a tenth from the end is inside a character
    (tmp_path / "one.txt").write_text(text, encoding="utf-8")
    corpus = open_text(tmp_path / "one.txt")
    (train,), (held_out,) = files_of(corpus.train), files_of(corpus.held_out)
    assert train.decode() + held_out.decode() == text
    assert 0.09 <= len(held_out) / 3001 <= 0.11


def test_two_large_files_are_split_by_position_too(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(name * 1000)
    corpus = open_text(tmp_path)
    assert (corpus.train.files, corpus.held_out.files) == (2, 1)
    assert corpus.held_out.tokens == 200 + 2


def test_the_second_opening_reads_the_cache(text, monkeypatch):
    first = open_text(text)
    monkeypatch.setattr(corpus_module, "_build", None)
    again = open_text(text)
    assert again.key == first.key
    assert np.array_equal(again.train.ids, first.train.ids)
    assert isinstance(again.train.ids, np.memmap)


@pytest.mark.parametrize("damage", ["flip", "cut", "index", "bounds", "missing"])
def test_a_damaged_cache_is_rebuilt(text, damage):
    first = open_text(text)
    expected = np.array(first.train.ids)
    (folder,) = (cache_folder() / "corpus").iterdir()
    del first
    stream = folder / "train.bin"
    if damage == "flip":
        content = bytearray(stream.read_bytes())
        content[100] ^= 1
        stream.write_bytes(content)
    elif damage == "cut":
        os.truncate(stream, 50)
    elif damage == "index":
        (folder / "index.json").write_text('{"key": ')
    elif damage == "bounds":
        index = json.loads((folder / "index.json").read_text())
        index["train"]["bounds"].pop()
        (folder / "index.json").write_text(json.dumps(index))
    else:
        (folder / "held_out.bin").unlink()
    again = open_text(text)
    assert np.array_equal(again.train.ids, expected)
    assert again.train.bounds[-1] == again.train.tokens
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_another_tokenizer_is_another_corpus_with_wider_ids(text):
    wide = open_corpus([text], WideTokenizer())
    assert wide.train.ids.dtype == np.uint16
    assert wide.key != open_text(text).key


def test_changed_text_is_another_corpus(text):
    before = open_text(text).key
    (text / "part00.txt").write_text("changed")
    assert open_text(text).key != before


def test_a_cache_that_cannot_be_written_is_told_with_the_way_out(text, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("STATEWELL_CACHE", str(tmp_path / "file"))
    with pytest.raises(RequestError, match="set STATEWELL_CACHE"):
        open_text(text)


def test_the_cache_lies_where_the_desktop_keeps_caches(monkeypatch, tmp_path):
    monkeypatch.delenv("STATEWELL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "statewell"


def test_too_little_text_for_a_window_is_refused_with_a_length_that_fits(tmp_path):
    (tmp_path / "one.txt").write_text("x" * 100)
    corpus = open_text(tmp_path)
    with pytest.raises(DataError, match=r"holds 92 tokens and a window needs 257; .*length=91"):
        require_windows(corpus, 256)
    require_windows(corpus, 91)


def test_too_little_text_to_hold_any_out_is_refused(tmp_path):
    (tmp_path / "one.txt").write_text("abc")
    with pytest.raises(DataError, match="too little text"):
        require_windows(open_text(tmp_path), 1)


def test_the_summary_counts_what_was_passed_over(tmp_path):
    write_text(tmp_path / "text", files=20)
    (tmp_path / "text" / "empty").touch()
    summary = open_text(tmp_path / "text").summary
    assert "20 files" in summary
    assert "Passed over: 1 empty." in summary
