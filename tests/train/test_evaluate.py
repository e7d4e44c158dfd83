import dataclasses

import numpy as np
import pytest
import torch

from statewell.models import build
from statewell.train.corpus import TokenStream
from statewell.train.evaluate import evaluate, evaluate_carried
from statewell.train.loss import bits_per_byte, token_nats

ARCHS = ("gpt2", "linear_attention", "deltanet", "gated_deltanet", "kimi_linear", "kimi_k3")


def stream_of(*sizes):
    draw = np.random.default_rng(0)
    ids, bounds = [np.zeros(1, np.uint8)], [1]
    for size in sizes:
        ids += [draw.integers(1, 255, size, dtype=np.uint8), np.zeros(1, np.uint8)]
        bounds.append(bounds[-1] + size + 1)
    return TokenStream(ids=np.concatenate(ids), bounds=np.array(bounds))


@pytest.fixture
def model(small_model):
    return build(small_model, seed=1)


def whole_bits(model, stream, files, limit=None):
    """Bits per byte of whole files, each in one call without memory: the definition."""
    nats, tokens = 0.0, 0
    for file in files:
        start, end = int(stream.bounds[file]), int(stream.bounds[file + 1]) - 1
        end = end if limit is None else min(end, start + limit)
        ids = torch.from_numpy(stream.ids[start - 1 : end].astype(np.int64))[None]
        with torch.no_grad():
            nats += token_nats(model(ids[:, :-1]), ids[:, 1:]).double().sum().item()
        tokens += end - start
    return bits_per_byte(nats / tokens), tokens


def test_windows_predict_every_token_but_the_first_once(model):
    stream = stream_of(63)  # 65 tokens: four windows of 16
    result = evaluate(model, stream, length=16, max_tokens=10_000, rows=3)
    ids = torch.from_numpy(stream.ids[:65].astype(np.int64))
    with torch.no_grad():
        nats = token_nats(model(ids[:64].view(4, 16)), ids[1:].view(4, 16)).double().sum().item()
    assert (result.tokens, result.pieces, result.longest) == (64, 4, 16)
    assert result.bits_per_byte == pytest.approx(bits_per_byte(nats / 64), rel=1e-6)


def test_too_many_windows_are_thinned_evenly_and_too_short_a_stream_is_one_window(model):
    thinned = evaluate(model, stream_of(1000), length=16, max_tokens=64)
    assert (thinned.tokens, thinned.pieces) == (64, 4)
    short = evaluate(model, stream_of(5), length=16, max_tokens=64)
    assert (short.tokens, short.pieces, short.longest) == (6, 1, 6)


def test_evaluating_leaves_the_mode_the_weights_and_the_generator_alone(model):
    model.train()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    state = torch.get_rng_state()
    evaluate(model, stream_of(50), length=8, max_tokens=32)
    evaluate_carried(model, stream_of(50), max_tokens=32)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("arch", ARCHS)
def test_memory_carried_through_pieces_and_rows_reads_as_whole_files(arch):
    from statewell.architectures import preset

    model = build(preset(arch, "nano"), seed=1)
    stream = stream_of(70, 33, 1, 100, 12)
    result = evaluate_carried(model, stream, max_tokens=10_000, rows=2, piece=32)
    expected, tokens = whole_bits(model, stream, range(5))
    assert (result.tokens, result.pieces, result.longest, result.truncated_at) == (tokens, 5, 100, None)
    assert result.bits_per_byte == pytest.approx(expected, rel=1e-5)


def test_the_budget_cuts_the_last_file_and_longest_cuts_each(model):
    stream = stream_of(70, 33, 100)
    budget = evaluate_carried(model, stream, max_tokens=80)
    assert (budget.tokens, budget.pieces, budget.longest) == (80, 2, 70)
    cut = evaluate_carried(model, stream, max_tokens=1000, longest=50)
    assert (cut.tokens, cut.pieces, cut.longest) == (50 + 33 + 50, 3, 50)


def test_a_model_with_a_limit_reads_to_its_limit_and_says_so(small_model):
    model = build(dataclasses.replace(small_model, context=40), seed=1)
    stream = stream_of(70, 33, 100)
    result = evaluate_carried(model, stream, max_tokens=1000, rows=3, piece=16)
    expected, tokens = whole_bits(model, stream, range(3), limit=40)
    assert (result.truncated_at, result.longest, result.tokens) == (40, 40, tokens)
    assert result.bits_per_byte == pytest.approx(expected, rel=1e-5)
    within = evaluate_carried(model, stream_of(40, 33), max_tokens=1000)
    assert within.truncated_at is None


def test_bits_are_for_each_byte_of_text_that_tokens_stand_for(model):
    plain = stream_of(70, 33)
    sizes = np.arange(256) % 5 + 1
    long = dataclasses.replace(plain, token_bytes=sizes)
    assert evaluate(model, long, length=16, max_tokens=64).bits_per_byte == pytest.approx(
        evaluate(model, plain, length=16, max_tokens=64).bits_per_byte * 64 / written(sizes, plain, 16, 64)
    )
    targets = np.concatenate([plain.ids[1:71], plain.ids[72:105]])
    assert evaluate_carried(model, long, max_tokens=1000).bits_per_byte == pytest.approx(
        evaluate_carried(model, plain, max_tokens=1000).bits_per_byte * 103 / sizes[targets].sum()
    )


def written(sizes, stream, length, tokens):
    starts = np.arange(tokens // length) * ((stream.tokens - 1) // length) // (tokens // length) * length
    return sum(sizes[stream.ids[start + 1 : start + length + 1]].sum() for start in starts)
