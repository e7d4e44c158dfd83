"""The compiled MXFP4 kernels: every instruction set against the float64 definition, on odd numbers of everything."""

from __future__ import annotations

import pytest
import torch

from statewell.kernels import ops, registry
from statewell.kernels.cpu import binding, mxfp4
from statewell.kernels.packed import Packed
from tests.kernels.test_mxfp4 import Held, chosen, every_byte_and_scale, rows, same_bits
from tests.tolerances import LIMITS, relative_rms

pytestmark = pytest.mark.skipif(binding.native is None, reason=f"the cpu kernels cannot run: {binding.MISSING}")


def matrix(out: int, width: int, seed: int = 0) -> Packed:
    draw = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (out, width // 2), generator=draw, dtype=torch.uint8)
    return Packed(packed, torch.randint(118, 132, (out, width // 32), generator=draw, dtype=torch.uint8))


@pytest.mark.parametrize("name", registry.instruction_sets())
def test_every_byte_and_scale_unpacks_to_the_bits_of_the_reference(name):
    packed, scale = every_byte_and_scale()
    with registry.use("reference"):
        expected = ops.mxfp4_dequantise(packed, scale)
    with registry.use_instruction_set(name):
        found = ops.mxfp4_dequantise(packed, scale)
    assert same_bits(found, expected)


@pytest.mark.parametrize("name", registry.instruction_sets())
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7, 33])
def test_products_equal_the_unpacked_ones_in_float64_at_every_width(name, tokens, monkeypatch):
    for out, width in ((1, 32), (3, 64), (5, 96), (7, 160), (66, 4096 + 224)):
        w, x = matrix(out, width), rows(tokens, width).float()
        exact = x.double() @ ops.mxfp4_dequantise(w.packed, w.scale, torch.float64).T
        with registry.use_instruction_set(name):
            for threads in (1, 2):
                monkeypatch.setattr(mxfp4, "threads", lambda count=threads: count)
                for made in mxfp4.products(x, (w, w)):
                    assert relative_rms(made, exact) <= LIMITS["operation", torch.float32]


@pytest.mark.parametrize("name", registry.instruction_sets())
def test_a_scale_that_is_not_a_number_reaches_its_row_alone(name):
    w, x = matrix(4, 96), rows(1, 96).float()
    w.scale[2, 1] = 255
    w.scale[1] = 0
    with registry.use_instruction_set(name):
        made = mxfp4.products(x, (w,))[0]
    assert made.isnan().tolist() == [[False, False, True, False]]
    exact = x.double() @ ops.mxfp4_dequantise(w.packed, w.scale, torch.float64).T
    assert (made[0, 1] - exact[0, 1]).abs() <= 1e-43  # a few of the smallest numbers there are


@pytest.mark.parametrize("name", registry.instruction_sets())
def test_a_tokens_product_has_the_same_bits_beside_any_other_tokens(name):
    w, x = matrix(9, 160), rows(7, 160).float()
    with registry.use_instruction_set(name):
        together = mxfp4.products(x, (w,))[0]
        alone = [mxfp4.products(x[i : i + 1], (w,))[0] for i in range(7)]
    assert torch.equal(together, torch.cat(alone))


def test_many_tokens_go_through_unpacked_pieces_within_the_same_limit():
    tokens = mxfp4.MOST_DIRECT + 5
    w, x = matrix(37, 64), rows(tokens, 64).float()
    exact = x.double() @ ops.mxfp4_dequantise(w.packed, w.scale, torch.float64).T
    assert relative_rms(mxfp4.products(x, (w,))[0], exact) <= LIMITS["operation", torch.float32]


@pytest.mark.parametrize("name", registry.instruction_sets())
@pytest.mark.parametrize("tokens", [1, 5, 300])
def test_packed_experts_equal_the_reference_with_many_experts_unused(name, tokens):
    held, index = Held(E=40, inner=64, width=96), chosen(tokens, 3, 20) * 2
    x, weight = rows(tokens, 96).float(), rows(tokens, 3, seed=5).float()
    exact = ops.packed_experts(x.double(), index, weight.double(), held.stream, ops.situ)
    with registry.use_instruction_set(name):
        found = ops.packed_experts(x, index, weight, held.stream, ops.situ)
    assert relative_rms(found, exact) <= LIMITS["operation", torch.float32]
