"""The product of a few tokens and a large weight, by whichever code."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from statewell.kernels import product as products
from statewell.kernels.product import LEAST_WEIGHTS, product
from tests.tolerances import relative_rms


@pytest.mark.parametrize("tokens", [1, 2, 17])
@pytest.mark.parametrize("shape", [(1, 16), (3, 5, 16), (700, 768), (2, 700, 768)])
@pytest.mark.parametrize("biased", [False, True])
def test_it_is_the_product_whatever_runs_it(tokens, shape, biased):
    generator = torch.Generator().manual_seed(0)
    *_, out, width = shape
    weight = torch.randn(out, width, generator=generator)
    bias = torch.randn(out, generator=generator) if biased else None
    x = torch.randn(*shape[:-2], tokens, width, generator=generator)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    with torch.inference_mode():
        assert relative_rms(product(x, weight, bias), exact) < 1e-6
        assert (
            relative_rms(product(x.double(), weight.double(), None if bias is None else bias.double()), exact) < 1e-15
        )


def test_it_has_a_gradient_wherever_one_is_asked_for():
    weight = torch.randn(LEAST_WEIGHTS // 512, 512, requires_grad=True)
    x = torch.randn(4, 512, requires_grad=True)
    product(x, weight).sum().backward()
    assert weight.grad is not None
    assert x.grad is not None
    with torch.no_grad():
        assert not product(x, weight).requires_grad


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch is built without oneDNN")
def test_few_tokens_of_a_large_weight_alone_take_the_other_way():
    large, small = torch.ones(LEAST_WEIGHTS // 512, 512), torch.ones(8, 512)
    with torch.inference_mode():
        assert products._for_onednn(torch.ones(2, 512), large)
        assert not products._for_onednn(torch.ones(1, 512), large)
        assert not products._for_onednn(torch.ones(2, 512), small)
        assert not products._for_onednn(torch.ones(2, 512).double(), large.double())
    assert not products._for_onednn(torch.ones(2, 512), large)
