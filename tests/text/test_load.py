"""Every format of tokenizer file: exact bytes, no control token out of text, and kept with a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statewell.engine.text_stream import TextStream
from statewell.errors import CheckpointError, DataError, RequestError
from statewell.text import Tokenizer, load_tokenizer, tiktoken_file, tokenizer_from_json
from tests.text import vocabularies
from tests.text.vocabularies import FORMATS, write

NAMES = st.sampled_from(
    ["<|endoftext|>", "<think>", "<s>", "</s>", "<|im_end|>", "<|open|>", "[EOS]", "<|sep|>", "    "]
)
TEXT = st.lists(st.text(st.characters(codec="utf-8"), max_size=8) | NAMES | st.sampled_from(["hello world", "\r\n"]))


def load(folder: Path) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="module", params=FORMATS)
def tokenizer(request, tmp_path_factory) -> Tokenizer:
    return load(FORMATS[request.param](tmp_path_factory.mktemp(request.param)))


@given(TEXT.map("".join))
@example('<|endoftext|><|im_end|><|open|>message role="system"<|sep|>')
@example("  two spaces first, <think> inside, \u0000 and 汉字\U0001f600")
def test_any_text_comes_back_and_never_becomes_a_control_token(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.controls.values())
    assert all(0 <= number < tokenizer.vocab for number in ids)


@given(TEXT.map("".join))
def test_tokens_one_by_one_stream_the_same_text(tokenizer, text):
    ids = tokenizer.encode(text)
    stream = TextStream(tokenizer.decode_bytes)
    streamed = "".join([stream.push([number]) for number in ids] + [stream.finish()])
    assert streamed == tokenizer.decode_bytes(ids).decode()
    assert streamed.removeprefix(" ") == text.removeprefix(" ") or streamed == " " + text


@given(ids=st.lists(st.integers(0, 10_000)))
def test_any_ids_decode_piece_by_piece_or_are_refused(tokenizer, ids):
    if all(number < tokenizer.vocab for number in ids):
        assert tokenizer.decode_bytes(ids) == b"".join(tokenizer.decode_bytes([number]) for number in ids)
        assert isinstance(tokenizer.decode(ids), str)
    else:
        with pytest.raises(RequestError, match="Token id"):
            tokenizer.decode_bytes(ids)


def test_controls_have_ids_and_names_and_text_has_not(tokenizer):
    assert tokenizer.controls
    for name, number in tokenizer.controls.items():
        assert tokenizer.token_id(name) == number
        assert tokenizer.decode_bytes([number]) == name.encode()
    with pytest.raises(RequestError, match="no control token 'hello'"):
        tokenizer.token_id("hello")


def test_half_a_surrogate_pair_is_refused(tokenizer):
    with pytest.raises(DataError, match="surrogate"):
        tokenizer.encode("a\ud800")


def test_a_run_keeps_the_files_and_reads_them_again(tokenizer, tmp_path):
    document = json.loads(json.dumps(tokenizer.to_json()))
    for name, content in tokenizer.files.items():
        (tmp_path / name).write_bytes(content)
    again = tokenizer_from_json(document, tmp_path)
    assert again == tokenizer
    assert again.specials == tokenizer.specials
    assert again.encode("hello world") == tokenizer.encode("hello world")
    changed = next(iter(tokenizer.files))
    (tmp_path / changed).write_bytes(tokenizer.files[changed] + b" ")
    with pytest.raises(CheckpointError, match=f"{changed} is not the file this model was saved with"):
        tokenizer_from_json(document, tmp_path)
    (tmp_path / changed).unlink()
    with pytest.raises(CheckpointError, match=f"{changed} cannot be read"):
        tokenizer_from_json(document, tmp_path)


def test_kept_files_never_lie_elsewhere(tmp_path):
    tokenizer = load(FORMATS["gpt2"](tmp_path / "model"))
    document = tokenizer.to_json() | {"files": {"../model/vocab.json": "0"}}
    with pytest.raises(CheckpointError, match="which is no tokenizer's"):
        tokenizer_from_json(document, tmp_path / "model")


def test_gpt2_files_encode_as_the_tokenizers_library_reads_them(tmp_path):
    from tokenizers import ByteLevelBPETokenizer

    folder = FORMATS["gpt2"](tmp_path)
    theirs = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    for text in ("hello world", "the user's message\n\n  and 1234", "é 汉字 \U0001f600"):
        assert load(folder).encode(text) == theirs.encode(text).ids


def test_the_bytes_are_those_that_the_library_decodes_to(tmp_path):
    from tokenizers import Tokenizer as Library

    for name in ("byte_level", "sentencepiece"):
        folder = FORMATS[name](tmp_path / name)
        theirs, ours = Library.from_file(str(folder / "tokenizer.json")), load(folder)
        for text in ("hello world", "  the user 汉字\n", "é\U0001f600"):
            ids = ours.encode(text)
            assert ours.decode(ids) == theirs.decode(ids)


def test_special_ids_come_from_the_files(tmp_path):
    kimi = load(FORMATS["kimi"](tmp_path / "kimi"))
    first = len(vocabularies.ranks())
    assert kimi.vocab == first + 256
    assert kimi.separator == kimi.token_id("[EOS]") == first + 1
    assert kimi.specials.ends == {first + 1, first + 2}  # the tokenizer's, and config.json's
    assert kimi.specials.pad == first + 255
    assert kimi.specials.opening == ()
    llama = load(FORMATS["sentencepiece"](tmp_path / "llama"))
    assert (llama.separator, llama.specials.opening) == (2, (1,))
    write(tmp_path / "llama", tokenizer_config__json={"eos_token": "</s>", "bos_token": "<s>", "add_bos_token": False})
    assert load(tmp_path / "llama").specials.opening == ()
    gpt2 = load(FORMATS["gpt2"](tmp_path / "gpt2"))
    assert gpt2.specials.ends == {gpt2.token_id("<|endoftext|>")}


def test_the_released_ranks_go_before_a_conversion_of_them(tmp_path):
    FORMATS["byte_level"](tmp_path)
    assert "tiktoken.model" in load(FORMATS["kimi"](tmp_path)).files


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    assert load_tokenizer(write(tmp_path, config__json={"vocab_size": 3})) is None


def test_templates_and_code_beside_the_files_are_kept_and_never_run(tmp_path):
    folder = write(
        FORMATS["kimi"](tmp_path), tokenization_kimi__py="raise SystemExit", chat_template__jinja="{{ 1/0 }}"
    )
    tokenizer = load(folder)
    assert tokenizer.files["chat_template.jinja"] == b"{{ 1/0 }}"
    assert "tokenization_kimi.py" not in tokenizer.files


def test_a_long_run_without_a_space_is_cut_as_the_release_cuts_it(tmp_path):
    tokenizer = load(FORMATS["kimi"](tmp_path))
    # 25,000 characters end in the middle of a word: the cut decides the tokens
    text = "éé" + "and" * 10_000
    uncut = tokenizer.encode("éé") + tokenizer.encode("and") * 10_000
    assert tokenizer.encode(text) == tokenizer.encode(text[:25_000]) + tokenizer.encode(text[25_000:]) != uncut
    assert tokenizer.decode(tokenizer.encode(" " * 1_000_000 + text)) == " " * 1_000_000 + text
    assert tokenizer.encode("ab " * 200_000)[-3:] == tokenizer.encode("ab " * 2)[-3:]


def cut_by_counting(text: str, most: int) -> list[str]:
    """The release's rule, a character at a time: count the run of one kind, cut before the one that is too many."""
    pieces, run = [""], 0
    for before, character in zip(" " + text, text, strict=False):
        run = run + 1 if pieces[0] and before.isspace() == character.isspace() else 1
        if run > most:
            pieces.append("")
            run = 1
        pieces[-1] += character
    return pieces


@given(st.text(st.sampled_from("ab \n"), min_size=1, max_size=40))
@example("aaa" + "   " + "bbbb")
def test_long_runs_are_cut_where_counting_cuts_them(text):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tiktoken_file, "RUN_CHARACTERS", 3)
        assert list(tiktoken_file._cut_runs(text)) == cut_by_counting(text, 3)
