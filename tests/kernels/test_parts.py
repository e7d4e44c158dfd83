"""Norms, SiTU and the two retention gates: golden vectors, extremes, gradients."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from statewell.kernels import ops
from tests.tolerances import assert_close

GOLDEN = load_file(Path(__file__).parents[1] / "golden" / "ops" / "parts.safetensors")


def rows(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def golden(name, dtype=torch.float64):
    return GOLDEN[name].to(dtype)


def assert_near_float32(actual, expected):
    """The gates' goldens were computed in float32: 1e-6, relative where they are larger than 1."""
    assert ((actual - expected).abs() <= 1e-6 * expected.abs().clamp(min=1)).all()


def situ_written_out(gate, up, beta=4.0, linear_beta=25.0):
    linear = up if linear_beta is None else linear_beta * torch.tanh(up / linear_beta)
    return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * linear


def test_swiglu_equals_the_written_formula_and_low_precision_is_computed_in_float32():
    gate, up = rows(40, 9, seed=3), rows(40, 9, seed=1)
    assert_close(ops.swiglu(gate, up), gate * torch.sigmoid(gate) * up, "operation")
    half = gate.bfloat16(), up.bfloat16()
    assert_close(ops.swiglu(*half), ops.swiglu(*(x.double() for x in half)).bfloat16(), "operation", torch.float32)


@pytest.mark.parametrize("linear_beta", [25.0, 1.5, None])
@pytest.mark.parametrize("beta", [4.0, 1.0])
def test_situ_equals_the_written_formula_with_both_gradients(beta, linear_beta):
    inputs = [5 * rows(40, 9), 40 * rows(40, 9, seed=1)]
    results = []
    for run in (ops.situ, situ_written_out):
        gate, up = tensors = [x.clone().requires_grad_() for x in inputs]
        out = run(gate, up, beta, linear_beta)
        results.append([out, *torch.autograd.grad((out * rows(40, 9, seed=2)).sum(), tensors)])
    for ours, expected in zip(*results, strict=True):
        assert_close(ours, expected, "operation")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_situ_is_bounded_and_finite_however_large_its_inputs(dtype):
    levels = torch.tensor([0.0, 1.0, 24.0, 26.0, 60.0, 1e4, 6e4], dtype=dtype)
    levels = torch.cat([levels, -levels])
    gate, up = (x.reshape(-1).requires_grad_() for x in torch.meshgrid(levels, levels, indexing="ij"))
    out = ops.situ(gate, up)
    assert out.dtype is dtype
    assert out.abs().max() <= 100
    for gradient in torch.autograd.grad(out.sum(), (gate, up)):
        assert gradient.isfinite().all()


@given(gate=st.floats(-(2.0**100), 2.0**100, width=32), up=st.floats(-(2.0**100), 2.0**100, width=32))
def test_situ_never_leaves_its_bound(gate, up):
    out = ops.situ(torch.tensor([gate]), torch.tensor([up]))
    assert out.isfinite().all()
    assert out.abs().item() <= 100


def test_low_precision_situ_is_computed_in_float32():
    gate, up = rows(30, dtype=torch.bfloat16), 20 * rows(30, seed=1, dtype=torch.bfloat16)
    assert torch.equal(ops.situ(gate, up), ops.situ(gate.float(), up.float()).bfloat16())


@pytest.mark.parametrize("activation", ["sigmoid", "silu"])
def test_golden_gated_norm(activation):
    act = {"sigmoid": torch.sigmoid, "silu": F.silu}[activation]
    x, weight, gate = (golden(f"gated_rmsnorm/{name}") for name in ("x", "weight", "gate"))
    out = ops.gated_rms_norm(x, weight, gate, 1e-5, act)
    assert (out - golden(f"gated_rmsnorm/out_{activation}_eps1e-5")).abs().max() <= 1e-9
    narrow = ops.gated_rms_norm(x.float(), weight.float(), gate.float(), 1e-5, act)
    assert (narrow - out).abs().max() <= 2e-5


def test_golden_gated_delta_gate():
    g = ops.decay_gate(golden("gdn_gate/a"), golden("gdn_gate/A_log"), golden("gdn_gate/dt_bias"))
    assert_near_float32(g, golden("gdn_gate/out"))


@pytest.mark.parametrize("case", ["kda_gate", "kda_gate_extreme"])
def test_golden_kda_gates(case):
    z, A_log = golden(f"{case}/g"), golden(f"{case}/A_log")
    name = f"{case}/dt_bias"
    dt_bias = golden(name).view(z.shape[-2:]) if name in GOLDEN else torch.zeros(z.shape[-2:], dtype=z.dtype)
    assert_near_float32(ops.decay_gate(z, A_log, dt_bias), golden(f"{case}/out_softplus"))
    assert_near_float32(ops.bounded_gate(z, A_log, dt_bias, -5.0), golden(f"{case}/out_lower_bound_-5"))


def test_norms_equal_their_written_formulas():
    x, weight = rows(6, 5, 8), rows(8, seed=1)
    assert_close(ops.l2norm(x), x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt(), "operation")
    expected = weight * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert_close(ops.rms_norm(x, weight, 1e-5), expected, "operation")


def test_the_eps_of_l2norm_joins_the_sum_and_a_zero_row_stays_zero():
    small = torch.full((1, 4), 1e-3, dtype=torch.float64)
    assert_close(ops.l2norm(small), small / (4e-6 + 1e-6) ** 0.5, "operation")
    for dtype in (torch.float32, torch.float64):
        zero = torch.zeros(2, 4, dtype=dtype, requires_grad=True)
        normed = ops.l2norm(zero)
        assert not normed.any()
        (gradient,) = torch.autograd.grad(normed.sum(), zero)
        assert_close(gradient, torch.full((2, 4), 1e3, dtype=torch.float64), "operation")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_norms_of_low_precision_are_taken_in_float32(dtype):
    x, weight, gate = rows(5, 8, dtype=dtype), rows(8, seed=1, dtype=dtype), rows(5, 8, seed=2, dtype=dtype)
    one = torch.ones(8)
    assert torch.equal(ops.l2norm(x), ops.l2norm(x.float()).to(dtype))
    assert torch.equal(ops.rms_norm(x, weight, 1e-5), ops.rms_norm(x.float(), one, 1e-5).to(dtype) * weight)
    wide = ops.gated_rms_norm(x.float(), weight.float(), gate.float(), 1e-5, torch.sigmoid)
    assert torch.equal(ops.gated_rms_norm(x, weight, gate, 1e-5, torch.sigmoid), wide.to(dtype))


def test_gates_of_low_precision_stay_in_float32():
    z, A_log, dt_bias = rows(3, 4, dtype=torch.bfloat16), torch.zeros(4), torch.zeros(4)
    assert ops.decay_gate(z, A_log, dt_bias).dtype is torch.float32
    assert ops.bounded_gate(z, A_log, dt_bias, -5.0).dtype is torch.float32


def test_the_decay_gate_past_the_softplus_threshold_is_linear_with_a_live_gradient():
    z = torch.tensor([[-200.0, -30.0, 19.0, 21.0, 90.0, 1e4]], requires_grad=True)
    A_log = torch.zeros(6, requires_grad=True)
    g = ops.decay_gate(z, A_log, torch.zeros(6))
    assert torch.equal(g[0, 3:], -z[0, 3:])
    assert (g <= 0).all()
    dz, dA = torch.autograd.grad(g.sum(), (z, A_log))
    assert torch.equal(dz[0, 3:], torch.full((3,), -1.0))
    assert dz.isfinite().all()
    assert dz[0, 1] < 0, "the gradient of a small gate vanished"
    assert dA.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@given(z=st.floats(-(2.0**100), 2.0**100, width=32), lower_bound=st.sampled_from([-5.0, -0.5, -80.0]))
def test_the_bounded_gate_stays_strictly_inside_its_bound(dtype, z, lower_bound):
    z = torch.tensor([[z]], dtype=dtype, requires_grad=True)
    A_log = torch.tensor([0.3], dtype=dtype, requires_grad=True)
    g = ops.bounded_gate(z, A_log, torch.zeros(1, dtype=dtype), lower_bound)
    assert lower_bound < g.item() < 0
    for gradient in torch.autograd.grad(g.sum(), (z, A_log)):
        assert gradient.isfinite().all()


def test_the_bias_of_the_bounded_gate_joins_before_the_head_factor():
    z, A_log, dt_bias = rows(2, 3, 4), rows(3, seed=1), rows(3, 4, seed=2)
    expected = -5 * torch.sigmoid(A_log.exp()[:, None] * (z + dt_bias))
    assert_close(ops.bounded_gate(z, A_log, dt_bias, -5.0), expected, "operation")
    expected = -A_log.exp()[:, None] * F.softplus(z + dt_bias)
    assert_close(ops.decay_gate(z, A_log, dt_bias), expected, "operation")


def test_gradcheck_of_every_part():
    x, weight, gate = rows(2, 3, 4), rows(4, seed=1), rows(2, 3, 4, seed=2)
    A_log, dt_bias = rows(3, seed=3), rows(3, 4, seed=4)
    checks = {
        "swiglu": (ops.swiglu, (x, gate)),
        "situ": (ops.situ, (x, gate)),
        "situ without a linear bound": (lambda g, u: ops.situ(g, u, 2.0, None), (x, gate)),
        "l2norm": (ops.l2norm, (x,)),
        "rms_norm": (lambda x, w: ops.rms_norm(x, w, 1e-5), (x, weight)),
        "gated_rms_norm": (lambda x, w, g: ops.gated_rms_norm(x, w, g, 1e-5, F.silu), (x, weight, gate)),
        "decay_gate per channel": (ops.decay_gate, (x, A_log, dt_bias)),
        "decay_gate per head": (ops.decay_gate, (x[..., 0], A_log, dt_bias[:, 0])),
        "bounded_gate": (lambda z, A, b: ops.bounded_gate(z, A, b, -5.0), (x, A_log, dt_bias)),
    }
    for name, (run, tensors) in checks.items():
        assert torch.autograd.gradcheck(run, [t.clone().requires_grad_() for t in tensors]), name
