"""Text pieces against the whole text: the cutting into tokens must never show."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statewell.engine.text_stream import TextStream
from statewell.errors import RequestError

# Few letters make stop strings overlap; the rest are characters of 2, 3 and 4 bytes and a combining pair.
TEXT = st.text(st.sampled_from("aabbc é€𝄞\n") | st.characters(exclude_categories=["Cs"]), max_size=40)
STOPS = st.lists(st.text("ab€c", min_size=1, max_size=4), max_size=3)


def pieces(whole: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    return [whole[start:end] for start, end in pairwise(places)]


def streamed(parts: list[bytes], stop: list[str]) -> tuple[list[str], bool]:
    stream = TextStream(bytes, stop)
    texts = [stream.push(part) for part in parts]
    return [*texts, stream.finish()], stream.stopped


def ended(text: str, stop: list[str]) -> str:
    return text[: min((text.find(s) for s in stop if s in text), default=len(text))]


CUTS = st.lists(st.integers(0, 200), max_size=30)


@given(TEXT, CUTS)
def test_any_cutting_of_any_text_gives_the_same_text(text, cuts):
    texts, stopped = streamed(pieces(text.encode(), cuts), [])
    assert "".join(texts) == text
    assert not stopped


@given(TEXT, CUTS)
def test_every_piece_is_the_longest_whole_beginning_so_far(text, cuts):
    parts = pieces(text.encode(), cuts)
    stream, seen, shown = TextStream(bytes), b"", ""
    for part in parts:
        seen += part
        shown += stream.push(part)
        # Nothing waits but the bytes of one unfinished character.
        assert shown == seen.decode("utf-8", "ignore")


@given(st.binary(max_size=40), CUTS)
@example(b"\xf0\x9f\x98", [1, 2])
@example(b"\xe2\x28\xa1", [1])
@example(b"\xed\xa0\x80", [1, 2])
@example(b"\xc3\xc3\xa9", [1])
def test_any_bytes_at_all_read_as_when_decoded_at_once(whole, cuts):
    texts, _ = streamed(pieces(whole, cuts), [])
    assert "".join(texts) == whole.decode("utf-8", "replace")


def test_an_invalid_byte_does_not_hold_up_what_follows():
    stream = TextStream(bytes)
    assert stream.push(b"a\xff") == "a\ufffd"
    assert stream.push(b"\xe2") == ""
    assert stream.push(b"b") == "\ufffdb"
    assert stream.push(b"\x80") == "\ufffd"


def test_a_character_waits_for_its_last_byte():
    stream = TextStream(bytes)
    assert [stream.push([byte]) for byte in "€é".encode()] == ["", "", "€", "", "é"]


@given(TEXT, CUTS, STOPS)
@example("xabcabd", [1, 2, 3, 4, 5, 6], ["abd"])
@example("abcd", [1, 2, 3], ["bc", "abcd"])
@example("abcx", [1, 2, 3], ["bc", "abcd"])
@example("aab", [1, 2], ["ab", "aa"])
def test_text_ends_before_the_first_stop_string_however_it_is_cut(text, cuts, stop):
    texts, stopped = streamed(pieces(text.encode(), cuts), stop)
    assert "".join(texts) == ended(text, stop)
    assert stopped == any(s in text for s in stop)


@given(TEXT, STOPS)
def test_no_part_of_a_stop_string_is_ever_shown(text, stop):
    stream, shown = TextStream(bytes, stop), ""
    allowed = ended(text, stop)
    for byte in text.encode():
        shown += stream.push([byte])
        assert allowed.startswith(shown)


@given(TEXT, STOPS)
def test_no_more_is_held_back_than_could_begin_a_stop_string(text, stop):
    stream, shown, seen = TextStream(bytes, stop), "", ""
    for character in text:
        shown += stream.push(character.encode())
        seen += character
        if not stream.stopped:
            held = seen[len(shown) :]
            assert held == "" or any(s.startswith(held) or held.startswith(s) or s in held for s in stop)
            assert len(held) < max(map(len, stop), default=1)


def test_held_text_comes_out_at_the_end_when_no_stop_string_followed():
    stream = TextStream(bytes, ["END"])
    assert stream.push(b"the E") == "the "
    assert stream.push(b"N") == ""
    assert stream.finish() == "EN"
    assert not stream.stopped


def test_nothing_comes_out_after_a_stop_string():
    stream = TextStream(bytes, ["\n\n"])
    assert stream.push(b"one\n") == "one"
    assert stream.push(b"\ntwo") == ""
    assert stream.stopped
    assert stream.push(b"three") == ""
    assert stream.finish() == ""


def test_an_empty_stop_string_is_refused():
    with pytest.raises(RequestError, match="at least one character"):
        TextStream(bytes, ["x", ""])
