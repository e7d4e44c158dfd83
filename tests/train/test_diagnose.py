import pytest
import torch
from torch import nn

from statewell.train.diagnose import (
    first_layer_not_finite,
    first_parameter_not_finite,
    last_gradient_not_finite,
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return [x, (x + self.inner(x),)]


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.blocks = nn.ModuleList([Block(), Block(), Block()])

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)[1][0]
        return x


IDS = torch.arange(6).view(2, 3)


def test_the_innermost_layer_that_breaks_is_named():
    model = Stack()
    assert first_layer_not_finite(model, IDS) is None
    with torch.no_grad():
        model.blocks[1].inner.weight[0, 0] = torch.nan
    assert first_layer_not_finite(model, IDS) == "blocks.1.inner"
    assert first_parameter_not_finite(model) == "blocks.1.inner.weight"


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_lies_inside_tuples_and_lists_is_looked_at(value):
    model = Stack()
    model.blocks[2].inner.register_forward_hook(lambda module, inputs, output: output * 0)
    with torch.no_grad():
        model.blocks[2].inner.bias.fill_(0)
    model.blocks[2].register_forward_hook(lambda module, inputs, output: [output[0], (output[1][0] + value,)])
    assert first_layer_not_finite(model, IDS) == "blocks.2"


def test_no_hook_stays_behind():
    model = Stack()
    first_layer_not_finite(model, IDS)
    assert not any(module._forward_hooks for module in model.modules())


def test_of_the_broken_gradients_the_one_nearest_the_output_is_named():
    model = Stack()
    model(IDS).sum().backward()
    assert last_gradient_not_finite(model) is None
    for block in (0, 1):  # backward carries it from block 1 to all before
        model.blocks[block].inner.bias.grad[0] = torch.nan
    assert last_gradient_not_finite(model) == "blocks.1.inner.bias"
