import math

import pytest
import torch

from statewell.train.loss import bits_per_byte, mean_nats, token_nats


def test_knowing_nothing_costs_eight_bits_a_byte():
    logits = torch.zeros(2, 5, 256, dtype=torch.float64)
    targets = torch.arange(10).view(2, 5)
    assert bits_per_byte(mean_nats(logits, targets).item()) == pytest.approx(8, abs=1e-12)


def test_the_loss_is_the_mean_of_the_negative_log_probabilities():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 7, generator=generator, dtype=torch.float64)
    targets = torch.randint(7, (2, 3), generator=generator)
    rows = [(logits[b, t].exp() / logits[b, t].exp().sum())[targets[b, t]] for b in range(2) for t in range(3)]
    expected = [-math.log(p) for p in rows]
    assert token_nats(logits, targets).flatten().tolist() == pytest.approx(expected, rel=1e-12)
    assert mean_nats(logits, targets).item() == pytest.approx(sum(expected) / 6, rel=1e-12)


def test_short_floats_are_summed_in_fp32_and_doubles_stay_doubles():
    targets = torch.zeros(1, 4, dtype=torch.int64)
    for stored, summed in (
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64,) * 2,
    ):
        logits = torch.randn(1, 4, 9, generator=torch.Generator().manual_seed(1)).to(stored)
        assert mean_nats(logits, targets).dtype == token_nats(logits, targets).dtype == summed
