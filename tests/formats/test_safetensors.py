"""Headers: what whole files say, and every way in which a file can be wrong."""

from __future__ import annotations

import json
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from statewell.errors import CheckpointError
from statewell.formats.plain_header import read_plain
from statewell.formats.safetensors import TensorEntry, examine_header, read_header, read_tensor
from tests.formats.files_fixture import described, write_file

DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.uint8: "U8",
    torch.int64: "I64",
    torch.bool: "BOOL",
}


def test_a_header_says_what_the_writer_wrote(tmp_path):
    tensors = {f"t.{name}": torch.ones(3, 2).to(dtype) for dtype, name in DTYPES.items()}
    tensors |= {"scalar": torch.tensor(2.0), "empty": torch.zeros(0, 4), "ünïcode": torch.zeros(1)}
    path = tmp_path / "t.safetensors"
    save_file(tensors, path, {"format": "pt"})
    header = read_header(path)
    assert header.metadata == {"format": "pt"}
    assert header.file_bytes == path.stat().st_size
    assert {name: entry.shape for name, entry in header.entries.items()} == {
        n: tuple(t.shape) for n, t in tensors.items()
    }
    for name, tensor in tensors.items():
        entry = header.entries[name]
        assert entry.name == name
        assert entry.dtype == DTYPES[tensor.dtype]
        assert read_tensor(path, entry) == bytes(tensor.flatten().view(torch.uint8).tolist())


WHOLE = {"a": described("F32", [2, 3], 0, 24), "b": described("U8", [8], 24, 32)}
F32 = described("F32", [2], 0, 8)
WRONG = {
    "a second tensor inside the first": (
        {"a": F32, "b": described("F32", [2], 4, 12)},
        12,
        "tensor b begins.*inside a",
    ),
    "the same bytes for both": ({"a": F32, "b": F32}, 8, "tensor b begins.*inside a"),
    "a hole": ({"a": F32, "b": described("U8", [2], 9, 11)}, 11, "tensor b begins.*1 bytes belong to no tensor"),
    "a hole before all": ({"a": described("F32", [2], 1, 9)}, 9, "after the header: 1 bytes belong to no tensor"),
    "bytes after the last": ({"a": F32}, 11, "has 3 bytes after a"),
    "an end past the file": ({"a": F32}, 7, "tensor a ends at byte .* cut short by 1 bytes"),
    "an end below its begin": ({"a": described("F32", [2], 8, 0)}, 8, "none negative, the second not below"),
    "a negative offset": ({"a": described("F32", [2], -8, 0)}, 8, "none negative"),
    "three offsets": ({"a": {**F32, "data_offsets": [0, 4, 8]}}, 8, "two data_offsets"),
    "an offset that is true": ({"a": {**F32, "data_offsets": [False, 8]}}, 8, "two data_offsets"),
    "an offset of 2^70": ({"a": described("F32", [2], 0, 2**70)}, 8, "two data_offsets"),
    "a size of 2^63": ({"a": described("F32", [2**63], 0, 8)}, 8, "from 0 to 2^63 - 1".replace("^", r"\^")),
    "a huge product": ({"a": described("F32", [2**62] * 64, 0, 8)}, 8, "tensor a needs .* 8 found"),
    "a hundred dimensions": ({"a": described("F32", [1] * 100, 0, 4)}, 4, "at most 64"),
    "a negative size": ({"a": described("F32", [-2], 0, 8)}, 8, "whole numbers from 0"),
    "a size with a fraction": ({"a": {**F32, "shape": [2.0]}}, 8, "whole numbers from 0"),
    "a shape that is text": ({"a": {**F32, "shape": "2"}}, 8, "whole numbers from 0"),
    "an unknown dtype": ({"a": {**F32, "dtype": "F33"}}, 8, "has dtype F33; known are"),
    "a dtype that is a number": ({"a": {**F32, "dtype": 32}}, 8, "has dtype 32"),
    "too few bytes for its shape": ({"a": described("F64", [2], 0, 8)}, 8, r"needs 16 bytes for F64 \[2\], 8 found"),
    "half a byte": ({"a": described("F4", [3], 0, 2)}, 2, "needs 1.5 bytes"),
    "a field too many": ({"a": {**F32, "device": "cpu"}}, 8, "and nothing else"),
    "a field too few": ({"a": {"dtype": "F32", "shape": [2]}}, 8, "dtype, shape and data_offsets"),
    "a tensor that is a list": ({"a": []}, 0, "dtype, shape and data_offsets"),
    "metadata that is no text": ({"__metadata__": {"a": 1}, "a": F32}, 8, "__metadata__"),
    "a list for a header": ([], 0, "an object of tensors"),
    "the same name twice": (b'{"a":{},"b":{},"a":{}}', 0, "the name a is there twice"),
    "a dtype twice": (
        b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
        1,
        "name dtype is there twice",
    ),
    "no UTF-8": (b'{"\xff":{}}', 0, r"not UTF-8 text \(byte 2\)"),
    "half a surrogate pair": (b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1, "half of a surrogate"),
    "UTF-16": ("{}".encode("utf-16"), 0, "UTF-8|JSON"),
    "a hundred thousand brackets": (b"[" * 100_000, 0, "nests deeper|not JSON"),
    "a number of 10,000 digits": (b'{"a":' + b"9" * 10_000 + b"}", 0, "not JSON"),
    "not a number": (b'{"a":NaN}', 0, "NaN is no JSON number"),
    "nothing": (b"", 0, "not JSON"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_header_is_refused_with_file_and_reason(tmp_path, wrong):
    header, tensor_bytes, words = WRONG[wrong]
    path = write_file(tmp_path / "w.safetensors", header, tensor_bytes)
    with pytest.raises(CheckpointError, match=words) as error:
        read_header(path)
    assert str(path) in str(error.value)
    assert examine_header(path).problems[0] == str(error.value)


@pytest.mark.parametrize("kept", [0, 7, 8, 50, -16, -1])
def test_a_file_cut_anywhere_is_refused(tmp_path, kept):
    path = write_file(tmp_path / "c.safetensors", WHOLE, 32)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="cut short"):
        read_header(path)


def test_a_header_longer_than_the_file_or_the_format_is_refused_unread(tmp_path):
    path = write_file(tmp_path / "h.safetensors", WHOLE, 32, length=2**63)
    with pytest.raises(CheckpointError, match=r"should have 9,223,372,036,854,775,808 bytes"):
        read_header(path)
    write_file(path, WHOLE, 32, length=100_000_001)
    with open(path, "r+b") as opened:
        opened.truncate(2**32)  # a sparse file, large enough for the header it claims
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="the format allows 100,000,000"):
        read_header(path)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "absent", tmp_path / "a\0b"):
        with pytest.raises(CheckpointError, match=r"not a file|cannot be read"):
            read_header(path)


def test_a_file_shortened_after_its_header_was_read_is_refused(tmp_path):
    path = write_file(tmp_path / "s.safetensors", WHOLE, 32)
    entry = read_header(path).entries["b"]
    with open(path, "r+b") as opened:
        opened.truncate(path.stat().st_size - 1)
    with pytest.raises(CheckpointError, match="was shortened: tensor b ends at"):
        read_tensor(path, entry)


def test_every_wrong_tensor_of_a_file_is_listed(tmp_path):
    header = {"a": {**F32, "dtype": "X"}, "b": F32, "c": described("F32", [3], 0, 8)}
    header = examine_header(write_file(tmp_path / "p.safetensors", header, 8))
    assert len(header.problems) == 2
    assert set(header.entries) == {"b"}


def test_a_hostile_name_is_shown_short_and_without_control_characters(tmp_path):
    path = write_file(tmp_path / "n.safetensors", {"\x1b[2J" + "n" * 500: []}, 0)
    (problem,) = examine_header(path).problems
    assert problem.isprintable()
    assert len(problem) < len(str(path)) + 250


def test_memory_stays_within_a_multiple_of_the_header(tmp_path):
    raw = b'{"a":[' + b"[]," * 200_000 + b"[]]}"  # what costs most per byte once parsed
    path = write_file(tmp_path / "m.safetensors", raw, 0)
    tracemalloc.start()
    assert examine_header(path).problems
    assert tracemalloc.get_traced_memory()[1] < 40 * len(raw)
    tracemalloc.stop()


NAMES = st.sampled_from(["a", "b", "__metadata__", "ü", 'q"', "\\", "},", " ", "0", "h.0.attn.bias"])
ENTRIES = st.tuples(NAMES, st.sampled_from(["U8", "F32", "F4", "X"]), st.lists(st.integers(0, 3), max_size=3))


@given(st.lists(ENTRIES, max_size=5), st.integers(-1, 1), st.sampled_from(["", " ", "  ,", "}", '"']), st.booleans())
def test_the_quick_reader_accepts_only_what_the_other_one_reads_alike(tmp_path_factory, entries, more, tail, metadata):
    parts, at = (['"__metadata__":{"format":"pt"}'] if metadata else []), 0
    for name, dtype, shape in entries:
        size = -(-torch.Size(shape).numel() * {"U8": 8, "F32": 32, "F4": 4, "X": 8}[dtype] // 8)
        parts.append(f"{json.dumps(name)}:{json.dumps(described(dtype, shape, at, at + size), separators=(',', ':'))}")
        at += size
    raw = ("{" + ",".join(parts) + "}" + tail).encode()
    path = write_file(tmp_path_factory.getbasetemp() / "q.safetensors", raw, max(at + more, 0))
    size = path.stat().st_size
    quick = read_plain(raw, 8 + len(raw), size)
    spaced = raw.replace(b":", b": ", 1)  # the same document, which the quick reader leaves to the other
    header = examine_header(write_file(path, spaced, max(at + more, 0)))
    if quick is not None:
        moved = {n: TensorEntry(e.name, e.dtype, e.shape, e.begin + 1, e.end + 1) for n, e in quick[0].items()}
        assert (moved, quick[1]) == (header.entries, header.metadata)
        assert header.problems == ()
