import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statewell.errors import CheckpointError, DataError, RequestError
from statewell.text import ByteTokenizer, Tokenizer, tokenizer_from_json

TOKENIZER: Tokenizer = ByteTokenizer()


@given(st.text(st.characters(codec="utf-8")))
def test_text_comes_back_from_its_ids(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.decode_bytes(ids) == text.encode()
    assert all(0 <= i < TOKENIZER.vocab for i in ids)


@given(st.lists(st.integers(0, 255)))
def test_any_ids_decode_to_their_bytes_and_to_some_text(ids):
    assert list(TOKENIZER.decode_bytes(ids)) == ids
    assert isinstance(TOKENIZER.decode(ids), str)


def test_a_character_cut_in_two_reads_as_a_replacement():
    ids = TOKENIZER.encode("aß")
    assert TOKENIZER.decode(ids[:2]) == "a�"


def test_half_a_surrogate_pair_is_refused_by_its_place():
    with pytest.raises(DataError, match=r"character 2 .*U\+D800"):
        TOKENIZER.encode("ab\ud800")


@pytest.mark.parametrize("ids", [[65, 256], [-1]])
def test_an_id_that_is_no_byte_is_refused(ids):
    with pytest.raises(RequestError, match="is not a byte"):
        TOKENIZER.decode(ids)


def test_a_tokenizer_survives_the_run_file():
    assert tokenizer_from_json(json.loads(json.dumps(TOKENIZER.to_json()))) == TOKENIZER


def test_an_unknown_kind_of_tokenizer_names_the_nearest():
    with pytest.raises(CheckpointError, match="did you mean 'bytes'"):
        tokenizer_from_json({"kind": "byte"})
