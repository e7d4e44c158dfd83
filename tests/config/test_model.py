"""Configs: written to JSON and read back, and refused where they cannot be."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statewell.architectures import ARCHITECTURES, RELEASED, SIZES, preset
from statewell.config.layers import (
    GELU,
    LatentMoESpec,
    ModelConfig,
    MoESpec,
    PlainStreamSpec,
    RMSNormSpec,
    SwiGLU,
)
from statewell.config.load import model_from_json, model_to_json
from statewell.config.memory import MemorySpec, TensorSpec
from statewell.config.mixers import AttentionSpec, GatedDeltaSpec, KDASpec
from statewell.config.numbers import format_bytes, format_count, parse_count
from statewell.errors import ConfigError, RequestError

CONFIGS = [
    *RELEASED.values(),
    *(preset(architecture, size) for architecture in ARCHITECTURES for size in SIZES),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_a_config_survives_json(config):
    assert model_from_json(json.loads(json.dumps(model_to_json(config)))) == config


def changed(path: list, value: object) -> dict:
    document = json.loads(json.dumps(model_to_json(preset("kimi_k3", "nano"))))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (
            ["layers", 0, "mixer", "heds"],
            3,
            "model.layers[0].mixer.heds is not a field of KDASpec; did you mean 'heads'",
        ),
        (
            ["layers", 0, "mixer", "kind"],
            "KDASpek",
            "model.layers[0].mixer.kind is 'KDASpek'; did you mean 'KDASpec'",
        ),
        (["layers", 1, "ffn", "top_k"], 99, "chooses 99 of 8 experts"),
        (["layers", 0, "mixer", "heads"], 0, "KDASpec.heads is 0"),
        (["layers", 0, "mixer", "heads"], "4", "model.layers[0].mixer.heads is '4'"),
    ],
)
def test_a_wrong_config_is_named_by_its_path(path, value, words):
    with pytest.raises(ConfigError) as caught:
        model_from_json(changed(path, value))
    assert words in str(caught.value)


def test_a_missing_field_is_named():
    document = changed(["layers", 0, "mixer", "heads"], 3)
    del document["layers"][0]["mixer"]["heads"]
    with pytest.raises(ConfigError, match=r"layers\[0\]\.mixer\.heads is missing"):
        model_from_json(document)


def test_impossible_configs_cannot_be_written_down():
    with pytest.raises(ConfigError, match="multiple"):
        GatedDeltaSpec(heads=4, value_heads=6, key_dim=8, value_dim=8)
    with pytest.raises(ConfigError, match="below 0"):
        KDASpec(heads=1, key_dim=8, value_dim=8, lower_bound=5.0)
    with pytest.raises(ConfigError, match="gated"):
        MoESpec(experts=4, top_k=2, width=8, shared_width=8, activation=GELU())
    with pytest.raises(ConfigError, match="latent"):
        LatentMoESpec(experts=4, top_k=2, width=8, shared_width=8, latent=0, activation=SwiGLU())
    gpt2 = preset("gpt2", "nano")
    with pytest.raises(ConfigError, match="positions"):
        dataclasses.replace(gpt2, context=2048)
    with pytest.raises(ConfigError, match="no layers"):
        dataclasses.replace(gpt2, layers=())


@given(
    lengths=st.lists(st.integers(0, 5000), max_size=5),
    page=st.integers(1, 300),
    fixed=st.integers(0, 50),
    grown=st.integers(0, 50),
)
def test_reserved_bytes_are_whole_pages_and_never_below_used(lengths, page, fixed, grown):
    spec = MemorySpec(
        tensors=(
            TensorSpec(name="state", shape=(fixed,), dtype="fp32"),
            TensorSpec(name="k", shape=(grown,), dtype="bf16", grows=True),
        )
    )
    used, reserved = spec.used(lengths), spec.reserved(lengths, page)
    assert used == sum(4 * fixed + 2 * grown * length for length in lengths)
    assert used <= reserved < used + len(lengths) * page * 2 * grown + 1
    assert (reserved - len(lengths) * 4 * fixed) % (page * max(1, 2 * grown)) == 0
    assert spec.reserved(lengths, capacity=5000) == len(lengths) * (4 * fixed + 5000 * 2 * grown)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1Mi", 2**20),
        ("32k", 32_000),
        ("1.5M", 1_500_000),
        ("80Gi", 80 * 2**30),
        ("1,048,576", 2**20),
        ("7", 7),
    ],
)
def test_counts_are_read_as_people_write_them(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "ten", "-3", "1.5", "1mi", "3 apples"])
def test_what_is_no_count_is_refused(text):
    with pytest.raises(RequestError):
        parse_count(text)


def test_bytes_and_counts_are_printed_in_their_units():
    assert (format_bytes(434_110_464), format_bytes(512), format_bytes(0)) == ("414.0 MiB", "512 B", "0 B")
    assert (format_count(2_779_484_476_000), format_count(216_448)) == ("2.78T", "216k")


def test_memory_is_the_sum_over_layers():
    spec = AttentionSpec(heads=2, head_dim=8).memory("fp32", "fp32")
    assert spec.bytes_per_token == 2 * 2 * 8 * 4
    config = preset("gpt2", "nano")
    assert isinstance(config, ModelConfig)
    assert config.memory("fp32").bytes_per_token == len(config.layers) * 2 * 64 * 4
    assert isinstance(config.stream, PlainStreamSpec)
    assert isinstance(preset("deltanet", "nano").norm, RMSNormSpec)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("vocab",), "256"),
        (("vocab",), True),
        (("vocab",), 2.5),
        (("context",), []),
        (("layers",), 3),
        (("layers", 0), None),
        (("layers", 0, "mixer"), {"kind": "RMSNormSpec"}),
        (("name",), None),
        (("tied",), 1),
    ],
)
def test_a_field_of_another_type_is_refused_by_its_path(path, value):
    document = model_to_json(preset("gpt2", "nano"))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ConfigError, match=r"model\."):
        model_from_json(document)
