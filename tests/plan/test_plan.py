"""The planner against the published figures, and against the models it describes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import statewell as sw
from statewell.architectures import ARCHITECTURES, RELEASED, SIZES, preset, resolve
from statewell.config.layers import AttnResSpec, LatentMoESpec, MLPSpec, SiTU
from statewell.config.mixers import KDASpec, MLASpec
from statewell.errors import ConfigError, LimitError, RequestError
from statewell.plan.flops import flops_per_token
from statewell.plan.weights import active, compared, total, weights

PRESETS = [(architecture, size) for size in SIZES for architecture in ARCHITECTURES]
SIZE_RANGES = {"nano": (0.2e6, 0.3e6), "tiny": (1e6, 2e6), "small": (15e6, 30e6)}


def test_gpt2_small_has_its_published_figures():
    plan = sw.plan("gpt2")
    assert (plan.parameters.total, plan.parameters.active) == (124_439_808, 123_653_376)
    assert (plan.memory.bytes_per_token, plan.memory.fixed_bytes, plan.memory.context) == (36_864, 0, 1024)
    assert plan.weights.bytes == 497_759_232
    assert sw.plan("gpt2", cache_dtype="fp32").memory.bytes_per_token == 73_728


def test_kimi_linear_has_its_published_figures():
    plan = sw.plan("kimi-linear-48b-a3b")
    assert (plan.parameters.total, plan.parameters.active) == (49_122_681_728, 3_106_972_544)
    assert (plan.weights.bytes, plan.memory.bytes_per_token) == (98_245_528_576, 8_064)


def test_kimi_k3_has_its_published_figures():
    plan = sw.plan("kimi-k3", context=2**20, rows=1, cache_dtype="bf16", state_dtype="fp32")
    assert (plan.parameters.total, plan.parameters.active) == (2_779_484_476_000, 104_189_612_640)
    assert plan.memory.fixed_bytes == 434_110_464 + 15_261_696 == 449_372_160
    assert (plan.memory.bytes_per_token, plan.memory.used_bytes) == (27_648, 29_440_401_408)
    assert plan.weights.bytes == 1_559_965_606_912
    assert round(plan.parameters.times_gpt2) == 22_336


@pytest.mark.parametrize(("architecture", "size"), PRESETS)
def test_every_preset_lies_in_its_size_range(architecture, size):
    config = preset(architecture, size)
    low, high = SIZE_RANGES[size]
    assert low <= active(config) <= high
    if size == "nano":
        assert total(config) <= 0.6e6


@pytest.mark.parametrize("size", SIZES)
def test_the_six_of_a_size_have_the_same_compared_parameters_within_three_percent(size):
    counts = [compared(preset(architecture, size)) for architecture in ARCHITECTURES]
    assert max(counts) / min(counts) <= 1.03


@pytest.mark.parametrize("size", SIZES)
def test_k3_presets_have_the_whole_structure_of_the_released_model(size):
    config, released = preset("kimi_k3", size), RELEASED["kimi-k3"]
    kinds = [type(layer.mixer) for layer in config.layers]
    assert kinds[:4] == [KDASpec, KDASpec, KDASpec, MLASpec]
    assert kinds[-2:] == [MLASpec, MLASpec]
    assert isinstance(config.layers[0].ffn, MLPSpec)
    assert all(isinstance(layer.ffn, LatentMoESpec) and layer.ffn.shared_width > 0 for layer in config.layers[1:])
    assert all(layer.ffn.activation == SiTU() for layer in config.layers)
    assert isinstance(config.stream, AttnResSpec)
    closed, partial = divmod(len(config.layers), config.stream.group)
    assert closed >= 1
    assert partial > 0
    kda, mla = config.layers[0].mixer, config.layers[3].mixer
    assert isinstance(kda, KDASpec)
    assert isinstance(mla, MLASpec)
    assert (kda.lower_bound, kda.output_gate, mla.gate) == (-5.0, "full", True)
    assert isinstance(released.layers[0].mixer, KDASpec)
    assert (released.layers[0].mixer.lower_bound, released.layers[0].mixer.output_gate) == (-5.0, "full")


@pytest.mark.parametrize(("architecture", "size"), [pair for pair in PRESETS if pair[1] != "small"])
def test_planned_weights_are_the_models_tensors_by_name_and_shape(architecture, size):
    model = sw.build(f"{architecture}:{size}")
    planned = {weight.name: weight.shape for weight in weights(model.config)}
    assert planned == {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_and_context_scale_used_and_reserved_bytes(rows):
    plan = sw.plan("kimi_k3:nano", context=300, rows=rows)
    memory = plan.memory
    assert memory.used_bytes == rows * (memory.fixed_bytes + 300 * memory.bytes_per_token)
    assert memory.reserved_bytes == rows * (memory.fixed_bytes + 384 * memory.bytes_per_token)
    assert sum(layer.bytes_per_token for layer in plan.layers) == memory.bytes_per_token
    assert sum(layer.fixed_bytes for layer in plan.layers) == memory.fixed_bytes


@given(device=st.integers(0, 2**36), rows=st.integers(1, 9), context=st.integers(0, 2**16))
def test_what_is_said_to_fit_fits_and_one_more_does_not(device, rows, context):
    plan = sw.plan("kimi_k3:tiny", context=context, rows=rows, device_memory=device)
    assert plan.fits is not None
    free = device - plan.weights.bytes
    assert plan.fits.yes == (plan.memory.reserved_bytes <= free)
    largest, most = plan.fits.largest_context, plan.fits.most_rows
    assert largest is not None
    assert most is not None
    if largest > 0:
        assert sw.plan("kimi_k3:tiny", context=largest, rows=rows).memory.reserved_bytes <= free
    if free >= rows * plan.memory.fixed_bytes:
        assert sw.plan("kimi_k3:tiny", context=largest + 1, rows=rows).memory.reserved_bytes > free
    if most > 0:
        assert sw.plan("kimi_k3:tiny", context=context, rows=most).memory.reserved_bytes <= free
    assert sw.plan("kimi_k3:tiny", context=context, rows=most + 1).memory.reserved_bytes > free


def test_a_context_past_the_models_limit_is_planned_and_said_so():
    plan = sw.plan("gpt2", context=32_768)
    assert plan.beyond_model_limit
    assert plan.memory.used_bytes == 32_768 * 36_864
    assert not sw.plan("gpt2", context=1024).beyond_model_limit


def test_weights_dtype_overrides_the_released_one():
    assert sw.plan("gpt2", weights_dtype="bf16").weights.bytes == 2 * 124_439_808
    assert sw.plan("kimi_k3:nano", weights_dtype="mxfp4").weights.bytes == -(-total(resolve("kimi_k3:nano")) * 17 // 32)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: sw.plan("kimi-k4"), RequestError, "did you mean 'kimi-k3'"),
        (lambda: sw.plan("kimi_k3:nanoo"), RequestError, "did you mean 'nano'"),
        (lambda: sw.plan("gpt3:nano"), RequestError, "did you mean 'gpt2'"),
        (lambda: sw.plan("gpt2", cache_dtype="bf17"), ConfigError, "did you mean 'bf16'"),
        (lambda: sw.plan("gpt2", weights_dtype="int3"), ConfigError, "Valid:"),
        (lambda: sw.plan("gpt2", rows=0), LimitError, "at least 1 row"),
        (lambda: sw.plan("gpt2", context=-1), LimitError, "at least 1 row of 0 tokens"),
    ],
)
def test_a_wrong_request_is_answered_with_the_way_out(call, error, words):
    with pytest.raises(error, match=r"[Vv]alid|at least") as caught:
        call()
    assert words in str(caught.value)


def test_flops_grow_with_context_only_where_attention_is():
    for architecture in ("linear_attention", "deltanet", "gated_deltanet"):
        config = preset(architecture, "tiny")
        assert flops_per_token(config, 10) == flops_per_token(config, 10_000)
    gpt2 = preset("gpt2", "tiny")
    per_position = 4 * 8 * 128  # 8 layers of width 128: scores and weighted sum, 2 flops each
    assert flops_per_token(gpt2, 11) - flops_per_token(gpt2, 10) == per_position
    assert flops_per_token(gpt2, 0) == 2 * active(gpt2) + per_position
