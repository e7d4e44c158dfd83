"""Mutations of whole inputs: only our own errors. `make fuzz` runs the same targets for longer, guided by coverage."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS, only_our_errors

ROOT = Path(__file__).resolve().parents[2]
# what a parser trips over: limits, signs, escapes, the format's own words
WORDS = [
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"-1",
    b"0",
    b"1e999",
    b"9" * 30,
    b"null",
    b"true",
    b"NaN",
    b"\xff",
    b"\\ud800",
]
WORDS += [
    b'"shape":[',
    b'"data_offsets":[0,0]',
    b'"__metadata__":',
    b"../x.safetensors",
    b"/",
    b"18446744073709551616",
    b"2147483648",
]


def mutated(raw: bytes, seed: int) -> bytes:
    """`raw` after one to four edits: bytes changed, cut out, doubled, or replaced by a word."""
    chance, edited = random.Random(seed), bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        begin = chance.randrange(len(edited) + 1)
        end = min(len(edited), begin + chance.choice([0, 0, 1, 1, 4, 30]))
        kind = chance.randrange(4)
        if kind == 0 and begin < len(edited):
            edited[begin] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del edited[begin:end]
        elif kind == 2:
            edited[begin:begin] = edited[begin:end]
        else:
            edited[begin:end] = chance.choice(WORDS)
    return bytes(edited)


def replaced(document: object, seed: int) -> object:
    """A JSON document with one value somewhere replaced by an unfit one."""
    chance = random.Random(seed)
    value = chance.choice([None, True, -1, 0, 2**31, 2**70, 1.5, 1e308, "", "x" * 50, [], {}, [[]], {"a": {}}])
    copy = json.loads(json.dumps(document))
    place = copy
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return copy
        key = chance.choice(keys)
        if isinstance(place[key], (dict, list)) and place[key] and chance.random() < 0.8:
            place = place[key]
        elif chance.random() < 0.2:
            del place[key]
            return copy
        else:
            place[key] = value
            return copy


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_is_accepted(name):
    for seed in seeds(name):
        assert only_our_errors(TARGETS[name], seed)


@pytest.mark.parametrize("name", TARGETS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=100)
def test_mutated_bytes_raise_only_our_own_errors(name, seed):
    whole = seeds(name)
    only_our_errors(TARGETS[name], mutated(whole[seed % len(whole)], seed))


@pytest.mark.parametrize("name", ["header_text", "index", "config", "own_config"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=100)
def test_documents_with_one_unfit_value_raise_only_our_own_errors(name, seed):
    whole = seeds(name)
    document = replaced(json.loads(whole[seed % len(whole)]), seed)
    only_our_errors(TARGETS[name], json.dumps(document, separators=(",", ":")).encode())


@pytest.mark.parametrize("name", TARGETS)
@given(raw=st.binary(max_size=200))
def test_noise_raises_only_our_own_errors(name, raw):
    only_our_errors(TARGETS[name], raw)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_fuzzing_guided_by_coverage_finds_only_our_own_errors(name):
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed (pip install 'statewell[fuzz]'); the mutations above ran")
    command = [sys.executable, "-m", "tests.fuzz.run", name, "--runs", "20000", "--seconds", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
