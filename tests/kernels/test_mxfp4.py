"""MXFP4: every byte and scale, the goldens, and experts kept packed against the same experts unpacked."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from statewell.errors import ShapeError
from statewell.kernels import ops, registry
from statewell.kernels.packed import Packed, PackedExpert
from tests.tolerances import LIMITS, assert_close, relative_rms

GOLDEN = load_file(Path(__file__).parent.parent / "golden" / "mxfp4" / "mxfp4.safetensors")
MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def value(byte: int, high: bool, e: int) -> float:
    """The definition, in Python's own numbers."""
    nibble = byte >> 4 if high else byte & 15
    magnitude = math.ldexp(MAGNITUDES[nibble & 7], e - 127) if e != 255 else math.nan
    return -magnitude if nibble & 8 else magnitude


def every_byte_and_scale() -> tuple[torch.Tensor, torch.Tensor]:
    """Each scale's row holds every byte once."""
    packed = torch.arange(256, dtype=torch.uint8).expand(256, 256).contiguous()
    return packed, torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 16).contiguous()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, NaN to NaN, and zeros with their signs."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(
        torch.where(a.isnan(), 0, a).view(torch.int32), torch.where(b.isnan(), 0, b).view(torch.int32)
    )


def test_all_256_bytes_under_all_256_scales_are_what_the_format_says():
    packed, scale = every_byte_and_scale()
    exact = torch.tensor(
        [[value(byte, high, e) for byte in range(256) for high in (False, True)] for e in range(256)],
        dtype=torch.float64,
    )
    found = ops.mxfp4_dequantise(packed, scale, torch.float64)
    assert torch.equal(found.nan_to_num(7.0), exact.nan_to_num(7.0))
    assert same_bits(ops.mxfp4_dequantise(packed, scale), exact.float())
    bf16 = ops.mxfp4_dequantise(packed, scale, torch.bfloat16)
    assert torch.equal(bf16.nan_to_num(7.0), exact.bfloat16().nan_to_num(7.0))


def test_the_smallest_scale_is_a_number_and_the_largest_byte_is_none():
    packed = torch.full((2, 16), 0x2A, dtype=torch.uint8)  # 1 in the high half, -1 in the low one
    found = ops.mxfp4_dequantise(packed, torch.tensor([[0], [255]], dtype=torch.uint8))
    assert found[0, :2].tolist() == [-(2.0**-127), 2.0**-127]
    assert found[1].isnan().all()


def test_dequantising_equals_the_goldens_to_the_bit():
    for case, dtype in (("all_bytes/dequant_f32", torch.float32), ("random/dequant_bf16", torch.bfloat16)):
        name = case.partition("/")[0]
        found = ops.mxfp4_dequantise(GOLDEN[f"{name}/weight_packed"], GOLDEN[f"{name}/weight_scale"], dtype)
        assert same_bits(found.float(), GOLDEN[case].float())


def test_quantising_equals_the_golden_to_the_bit():
    packed, scale = ops.mxfp4_quantise(GOLDEN["random/weight_f32"])
    assert torch.equal(packed, GOLDEN["random/weight_packed"])
    assert torch.equal(scale, GOLDEN["random/weight_scale"])


def test_quantising_what_was_unpacked_changes_nothing_and_ties_go_to_the_even_code():
    exact = torch.tensor([6.0, -0.5, 0.0, 1.5, -3.0, 2.0, 4.0, 1.0] * 4).repeat(3, 2) * torch.tensor(
        [[1], [0.25], [64]]
    )
    assert torch.equal(ops.mxfp4_dequantise(*ops.mxfp4_quantise(exact)), exact)
    ties = torch.tensor([4.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, -5.0] + [0.0] * 24)[None]
    assert ops.mxfp4_dequantise(*ops.mxfp4_quantise(ties))[0, :8].tolist() == [4, 0, 1, 1, 2, 2, 4, -4]
    assert not ops.mxfp4_dequantise(*ops.mxfp4_quantise(torch.zeros(2, 64))).any()


@pytest.mark.parametrize(
    ("packed", "scale", "words"),
    [
        (torch.zeros(3, 16), torch.zeros(3, 1, dtype=torch.uint8), "packed is torch.float32, torch.uint8 is needed"),
        (torch.zeros(3, 17, dtype=torch.uint8), torch.zeros(3, 1, dtype=torch.uint8), "packed has shape (3, 17)"),
        (torch.zeros(16, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8), "at least 2 axes are needed"),
    ],
)
def test_bytes_that_do_not_fit_each_other_are_refused(packed, scale, words):
    with pytest.raises(ShapeError, match="mxfp4_dequantise: ") as refusal:
        ops.mxfp4_dequantise(packed, scale)
    assert words in str(refusal.value)


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def quantised(*shape: int, seed: int) -> Packed:
    return Packed(*ops.mxfp4_quantise(rows(*shape, seed=seed)))


class Held:
    """E experts packed side by side; gives those asked for in the order `arrive` puts them."""

    def __init__(self, E: int = 6, inner: int = 96, width: int = 64, arrive=list) -> None:
        self.matrices = [quantised(E, inner, width, seed=1), quantised(E, inner, width, seed=2)]
        self.matrices.append(quantised(E, width, inner, seed=3))
        self.arrive, self.asked = arrive, []

    def stream(self, numbers):
        self.asked.append(list(numbers))
        for e in self.arrive(numbers):
            yield e, PackedExpert(*(Packed(m.packed[e], m.scale[e]) for m in self.matrices))

    def dense(self, dtype: torch.dtype) -> list[torch.Tensor]:
        return [ops.mxfp4_dequantise(m.packed, m.scale, dtype) for m in self.matrices]


def chosen(M: int, k: int, E: int, seed: int = 0) -> torch.Tensor:
    scores = torch.rand(M, E, generator=torch.Generator().manual_seed(seed))
    return scores.topk(k, dim=-1).indices


@pytest.mark.parametrize("tokens", [1, 3, 17, 60])
def test_packed_experts_equal_the_same_experts_unpacked(tokens):
    held, index = Held(), chosen(tokens, 2, 6)
    x, weight = rows(tokens, 64), rows(tokens, 2, seed=5)
    exact = ops.experts(x, index, weight, *held.dense(torch.float64), ops.situ)
    with registry.use("reference"):
        assert_close(ops.packed_experts(x, index, weight, held.stream, ops.situ), exact, "operation")
    found = ops.packed_experts(x.float(), index, weight.float(), held.stream, ops.situ)
    exact = ops.experts(x.float().double(), index, weight.float().double(), *held.dense(torch.float64), ops.situ)
    assert relative_rms(found, exact) <= LIMITS["operation", torch.float32]
    assert held.asked == [index.unique().tolist()] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_order_in_which_experts_arrive_changes_no_bit(dtype):
    x, weight, index = rows(9, 64).to(dtype), rows(9, 3, seed=5).to(dtype), chosen(9, 3, 6)
    forward = ops.packed_experts(x, index, weight, Held().stream, ops.situ)
    backward = ops.packed_experts(x, index, weight, Held(arrive=lambda n: list(n)[::-1]).stream, ops.situ)
    assert torch.equal(forward, backward)


def test_gradients_reach_the_tokens_and_the_shares():
    held, index = Held(E=3, inner=32, width=32), chosen(4, 2, 3)
    x, weight = rows(4, 32).requires_grad_(), rows(4, 2, seed=5).requires_grad_()
    packed = torch.autograd.grad(
        ops.packed_experts(x, index, weight, held.stream, ops.situ).square().sum(), (x, weight)
    )
    dense = ops.experts(x, index, weight, *held.dense(torch.float64), ops.situ)
    for ours, expected in zip(packed, torch.autograd.grad(dense.square().sum(), (x, weight)), strict=True):
        assert_close(ours, expected, "gradient")


def test_no_tokens_ask_for_no_expert():
    held = Held()
    out = ops.packed_experts(torch.zeros(0, 64), torch.zeros(0, 2).long(), torch.zeros(0, 2), held.stream, ops.situ)
    assert out.shape == (0, 64)
    assert held.asked in ([], [[]])


@pytest.mark.parametrize(
    ("arrive", "words"),
    [
        (lambda n: list(n)[1:], "expert 0 did not come"),
        (lambda n: [*n, n[0]], "expert 0 came unasked or twice"),
    ],
)
def test_a_stream_that_gives_other_experts_than_asked_for_is_refused(arrive, words):
    with pytest.raises(ShapeError, match=words):
        ops.packed_experts(
            torch.zeros(2, 64), chosen(2, 2, 2), torch.zeros(2, 2), Held(2, arrive=arrive).stream, ops.situ
        )


def test_experts_of_another_width_are_refused():
    with pytest.raises(ShapeError, match=r"expert 0 has w1 \[96, 64\], w3 \[96, 64\] and w2 \[64, 96\]"):
        ops.packed_experts(torch.zeros(2, 32), chosen(2, 2, 6) * 0, torch.zeros(2, 2), Held().stream, ops.situ)
