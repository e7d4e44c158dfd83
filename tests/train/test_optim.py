import pytest
import torch
from torch import nn

from statewell.config.run import TrainConfig
from statewell.train.optim import build_optimizer, clip_gradients, gradient_norm, learning_rate

CONFIG = TrainConfig(learning_rate=1.0, warmup=0.1, final_rate=0.1)


def test_the_rate_rises_to_its_highest_and_falls_to_a_tenth():
    rates = [learning_rate(share / 100, CONFIG) for share in range(101)]
    assert rates[0] == 0
    assert rates[5] == pytest.approx(0.5)
    assert max(rates) == rates[10] == 1.0
    assert rates[55] == pytest.approx(0.55)  # half way down
    assert rates[100] == pytest.approx(0.1)
    assert sorted(rates[:11]) == rates[:11]
    assert sorted(rates[10:], reverse=True) == rates[10:]


def test_no_warm_up_begins_at_the_top_and_all_warm_up_ends_there():
    assert learning_rate(0.0, TrainConfig(learning_rate=1.0, warmup=0.0)) == 1.0
    assert learning_rate(0.5, TrainConfig(learning_rate=1.0, warmup=1.0)) == 0.5
    assert learning_rate(1.0, TrainConfig(learning_rate=1.0, warmup=1.0)) == 1.0


def test_only_parameters_outside_no_decay_shrink_without_a_gradient():
    model = nn.Linear(3, 3)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, {"bias"}, TrainConfig(learning_rate=0.1, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(model.bias, before["bias"])
    torch.testing.assert_close(model.weight, before["weight"] * (1 - 0.1 * 0.5))


def test_every_parameter_is_optimised_once():
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    optimizer = build_optimizer(model, {"0.bias", "1.weight", "1.bias"}, TrainConfig())
    optimised = [p for group in optimizer.param_groups for p in group["params"]]
    assert sorted(map(id, optimised)) == sorted(map(id, model.parameters()))


def test_clipping_scales_down_to_the_norm_and_never_up():
    model = nn.Linear(1, 2, bias=False)
    model.weight.grad = torch.tensor([[3.0], [4.0]])
    norm = gradient_norm(model)
    assert norm.item() == pytest.approx(5.0)
    clip_gradients(model, 1.0, norm)
    assert model.weight.grad.norm().item() == pytest.approx(1.0, rel=1e-5)
    clip_gradients(model, 2.0, gradient_norm(model))
    assert model.weight.grad.norm().item() == pytest.approx(1.0, rel=1e-5)
