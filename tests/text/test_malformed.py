"""Tokenizer files as an enemy would write them: only our own errors, with the file and the way out."""

from __future__ import annotations

import copy
import json
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewell.errors import CheckpointError, StatewellError
from statewell.text import load_tokenizer, tokenizer_from_json
from statewell.text.files import TokenizerFiles
from statewell.text.huggingface import HuggingFaceTokenizer
from statewell.text.tiktoken_file import TiktokenTokenizer
from tests.text.vocabularies import (
    FORMATS,
    byte_document,
    ranks,
    sentencepiece_document,
    tiktoken_lines,
    write,
)

ODD = st.sampled_from(
    [None, True, 0, -1, 2**31, 2**32 - 1, 2**64, 1.5, "", "a", "▁", "[", "(?:a+)+$", [], {}, [["a", "b"]], ["a"],
     {"String": ""}, {"Regex": "["}, {"type": "WordPiece"}, {"type": "Precompiled"},
     {"type": "Sequence", "decoders": []},
     {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
      "pad_token": "x"}]
)  # fmt: skip


def message(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(folder)
    return str(caught.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json", "vocab.json"])
@pytest.mark.parametrize("content", [b"{", b"", b"[]", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_a_file_that_is_no_json_object_is_named(tmp_path, name, content):
    folder = FORMATS["gpt2" if name == "vocab.json" else "byte_level"](tmp_path)
    (folder / name).write_bytes(content)
    assert str(folder / name) in message(folder)


@pytest.mark.parametrize(("here", "other"), [("vocab.json", "merges.txt"), ("merges.txt", "vocab.json")])
def test_half_of_a_pair_of_files_names_the_other(tmp_path, here, other):
    folder = FORMATS["gpt2"](tmp_path)
    (folder / other).unlink()
    assert f"holds {here} without {other}; copy {other} beside it" in message(folder)


def test_merges_of_another_vocabulary_are_named_by_their_line(tmp_path):
    folder = write(FORMATS["gpt2"](tmp_path), merges__txt="#version: 0.2\nt h\nzz q\n")
    assert "merges.txt: 'zz q' does not join two tokens" in message(folder)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"vocab_size": 100}, "vocab_size is 100; the two are not of one model"),
        ({"text_config": {"vocab_size": 100}}, "vocab_size is 100"),
        ({"vocab_size": 5000, "pad_token_id": 5000}, "pad_token_id is 5000, ids go from 0 to 4,999"),
        ({"vocab_size": 5000, "eos_token_id": [1, -1]}, "eos_token_id is -1"),
        ({"vocab_size": 5000, "text_config": {"eos_token_id": 9999}}, "eos_token_id is 9999"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"vocab_size": 5000, "bos_token_id": "1"}, "bos_token_id is '1'"),
        ({"pad_token_id": -1}, "pad_token_id is -1, must not be negative"),
    ],
)
def test_ids_and_sizes_that_do_not_fit_are_named(tmp_path, config, says):
    folder = write(FORMATS["byte_level"](tmp_path), config__json=config)
    assert says in message(folder)
    assert str(folder / "config.json") in message(folder)


def test_a_named_token_that_is_none_is_refused(tmp_path):
    folder = write(FORMATS["byte_level"](tmp_path), tokenizer_config__json={"eos_token": "<none>"})
    assert "eos_token '<none>' is not in the vocabulary" in message(folder)
    write(folder, tokenizer_config__json={"eos_token": 7})
    assert "eos_token is no string" in message(folder)


def test_an_added_token_whose_id_the_vocabulary_does_not_confirm_is_refused(tmp_path):
    document = byte_document()
    document["added_tokens"][0]["id"] = 4  # type: ignore[index]
    assert "has id 4, but the vocabulary gives it" in message(write(tmp_path, tokenizer__json=document))


def test_a_decoder_that_needs_neighbours_is_refused_by_name(tmp_path):
    document = byte_document() | {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}
    assert "decoder, {'type': 'WordPiece'" in message(write(tmp_path, tokenizer__json=document))


def test_a_panic_of_the_library_is_an_error_of_ours(tmp_path):
    document = sentencepiece_document()
    document["post_processor"]["special_tokens"] = {}  # type: ignore[index] - the library looks <s> up and panics
    assert "does not take this text" in message(write(tmp_path, tokenizer__json=document))


def test_padding_truncation_and_dropout_of_the_file_do_nothing(tmp_path):
    document = byte_document()
    document["model"]["dropout"] = 0.9  # type: ignore[index]
    document["truncation"] = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    document["padding"] = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                           "pad_type_id": 0, "pad_token": "!"}  # fmt: skip
    plain, odd = byte_document(), document
    folders = [write(tmp_path / name, tokenizer__json=each) for name, each in (("plain", plain), ("odd", odd))]
    texts = "hello the user and message" * 3
    first, second = (load_tokenizer(folder) for folder in folders)
    assert first is not None
    assert second is not None
    assert first.encode(texts) == second.encode(texts)


def test_a_tiktoken_file_is_refused_by_its_line(tmp_path):
    folder = FORMATS["kimi"](tmp_path)
    good = (folder / "tiktoken.model").read_bytes().split(b"\n")
    for line in (b"!!! 300", b"YWI=", b"YWI= x", b"YWI= 1e3", b" 3", b"AA== 300", b"YWI= 99999999999"):
        (folder / "tiktoken.model").write_bytes(b"\n".join([*good[:10], line]))
        assert "tiktoken.model line 11 is not base64 of a new token" in message(folder)
    (folder / "tiktoken.model").write_bytes(b"\n".join(good[1:]))
    assert "does not rank its" in message(folder)
    (folder / "tiktoken.model").write_bytes(tiktoken_lines([token for token in ranks() if token != b"z"]))
    assert "has no token for the single byte 122" in message(folder)


@pytest.mark.parametrize(
    ("added", "says"),
    [
        ({"5": {"content": "[BOS]"}}, "has the id '5'; reserved ids here are"),
        ({"x": {"content": "[BOS]"}}, "has the id 'x'"),
        ({"300": {"content": ""}}, r"\[300\] has no name"),
        ({"300": "x"}, r"\[300\] has no name"),
        ({"300": {"content": "\ud800"}}, r"\[300\] has no name"),
        ({"300": {"content": "x"}, "301": {"content": "x"}}, "one name to two ids"),
        (["x"], "is not an object"),
    ],
)
def test_reserved_names_that_cannot_be_are_refused(added, says):
    files = {"tiktoken.model": tiktoken_lines([bytes([byte]) for byte in range(256)]),
             "tokenizer_config.json": json.dumps({"added_tokens_decoder": added}).encode()}  # fmt: skip
    with pytest.raises(CheckpointError, match=says):
        TiktokenTokenizer(TokenizerFiles("tiktoken", files, "here"))


def test_special_ids_of_a_run_file_are_held_against_the_vocabulary(tmp_path):
    tokenizer = load_tokenizer(FORMATS["gpt2"](tmp_path))
    assert tokenizer is not None
    document = tokenizer.to_json()
    for specials in (None, {}, {"separator": 10**6, "opening": [], "ends": [], "pad": None},
                     {"separator": 0, "opening": ["x"], "ends": [], "pad": None}):  # fmt: skip
        with pytest.raises(CheckpointError, match="special ids are not ids in"):
            tokenizer_from_json(document | {"specials": specials}, tmp_path)


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Every place of a JSON value, of long lists and objects the first eight."""
    items = list(value.items())[:8] if isinstance(value, dict) else []
    items += list(enumerate(value))[:8] if isinstance(value, list) else []
    return [path, *(place for key, inner in items for place in places(inner, (*path, key)))]


def opened_or_refused(document: object) -> None:
    """A tokenizer that keeps its promises, or one of our errors."""
    files = TokenizerFiles("huggingface", {"tokenizer.json": json.dumps(document).encode()}, "here")
    try:
        tokenizer = HuggingFaceTokenizer(files)
        for text in ("hello the <s> </s> <think><|endoftext|>", "é汉\x00 \n"):
            ids = tokenizer.encode(text)
            assert not set(ids) & set(tokenizer.controls.values())
            tokenizer.decode(ids)
    except StatewellError as error:
        refusal = str(error)
    else:
        refusal = "here: none"
    assert "here" in refusal


@pytest.mark.parametrize("base", [byte_document(), sentencepiece_document()], ids=["byte_level", "sentencepiece"])
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), ODD, st.booleans()), min_size=1, max_size=3))
@settings(max_examples=150)
def test_any_change_to_a_tokenizer_json_opens_or_is_refused_by_us(base, changes):
    document = copy.deepcopy(base)
    for place, value, remove in changes:
        found = [each for each in places(document) if each]
        *path, last = found[place % len(found)]
        target = document
        for key in path:
            target = target[key]
        if remove:
            del target[last]
        else:
            target[last] = copy.deepcopy(value)
        if not document:
            break
    opened_or_refused(document)


@given(st.binary(max_size=200), st.integers(0, 10**6), st.integers(0, 3))
def test_any_change_to_the_bytes_of_a_tiktoken_file_opens_or_is_refused_by_us(noise, place, cut):
    content = tiktoken_lines(ranks())
    place %= len(content)
    files = {"tiktoken.model": content[:place] + noise + content[place + cut :]}
    config = json.dumps({"eos_token": "<|reserved_token_300|>"}).encode()
    try:
        tokenizer = TiktokenTokenizer(TokenizerFiles("tiktoken", files | {"tokenizer_config.json": config}, "here"))
        assert tokenizer.decode(tokenizer.encode("hello 汉字")) == "hello 汉字"
    except StatewellError as error:
        refusal = str(error)
    else:
        refusal = "here: none"
    assert "here" in refusal


def test_a_file_of_nothing_but_size_is_refused_without_being_held(tmp_path):
    folder = FORMATS["byte_level"](tmp_path)
    with open(folder / "tokenizer.json", "r+b") as out:
        out.truncate(2**40)  # sparse: a terabyte of nothing
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "is larger than 67,108,864 bytes" in message(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**14  # KiB
