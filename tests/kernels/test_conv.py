"""The short convolution: against torch's own and the goldens, causal and splittable to the bit, packed."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from statewell.kernels import ops
from tests.tolerances import assert_close

GOLDEN = Path(__file__).parents[1] / "golden" / "ops" / "parts.safetensors"


def rows(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def torch_conv(x, weight, state):
    """The same with torch's depthwise convolution, on channels first."""
    joined = torch.cat([state, x], dim=1)
    return F.conv1d(joined.mT, weight[:, None], groups=x.shape[-1]).mT, joined[:, x.shape[1] :]


def cuts(*lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])


@pytest.mark.parametrize("W", [1, 2, 4, 5])
@pytest.mark.parametrize("T", [1, 2, 3, 4, 33])
def test_it_equals_torchs_depthwise_convolution_with_all_gradients(T, W):
    inputs = [rows(2, T, 6, seed=1), rows(6, W, seed=2), rows(2, W - 1, 6, seed=3)]
    results = []
    for run in (ops.short_conv, torch_conv):
        tensors = [x.clone().requires_grad_() for x in inputs]
        y, state = run(*tensors)
        loss = (y * rows(2, T, 6, seed=4)).sum() + (state * rows(2, W - 1, 6, seed=5)).sum()
        results.append([y, state, *torch.autograd.grad(loss, tensors)])
    for ours, expected in zip(*results, strict=True):
        if expected.numel():  # W = 1 keeps no state
            assert_close(ours, expected, "operation")


def test_the_last_tap_multiplies_the_current_token():
    weight = torch.tensor([[0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    x = rows(1, 6, 2)
    y, _ = ops.short_conv(x, weight)
    assert torch.equal(y[..., 0], x[..., 0])
    assert torch.equal(y[:, 3:, 1], x[:, :3, 1])
    assert not y[:, :3, 1].any()


def test_golden_short_convolution():
    golden = load_file(GOLDEN)
    x, weight = golden["short_conv/x"].double(), golden["short_conv/weight"][:, 0].double()
    state = golden["short_conv/initial_state_k-1"].mT.double()
    y, new = ops.short_conv(x, weight, state)
    assert (F.silu(y) - golden["short_conv/out"]).abs().max() <= 1e-9  # the file's outputs are after SiLU
    assert (new - golden["short_conv/final_state_k-1"].mT).abs().max() <= 1e-9
    y, _ = ops.short_conv(x, weight)
    assert (F.silu(y) - golden["short_conv/out_zero_state"]).abs().max() <= 1e-9


def run_with_gradients(x, weight, state, seen, cu_seqlens=None):
    """Outputs and gradients of a loss on the first `seen` outputs."""
    tensors = [t.clone().requires_grad_() for t in (x, weight, state)]
    y, _ = ops.short_conv(*tensors, cu_seqlens)
    loss = (y[:, :seen] * rows(*y[:, :seen].shape, seed=9, dtype=y.dtype)).sum()
    return y, torch.autograd.grad(loss, tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("D", [1, 7, 64])
@settings(max_examples=20, deadline=None)
@given(seen=st.integers(1, 40), more=st.integers(0, 70))
def test_outputs_states_and_gradients_are_causal_to_the_bit(D, dtype, seen, more):
    weight, state = rows(D, 4, seed=2, dtype=dtype), rows(2, 3, D, seed=3, dtype=dtype)
    short = rows(2, seen, D, seed=1, dtype=dtype)
    long = torch.cat([short, rows(2, more, D, seed=5, dtype=dtype)], dim=1)
    other = torch.cat([short, 3 * rows(2, more, D, seed=6, dtype=dtype)], dim=1)
    y, grads = run_with_gradients(short, weight, state, seen)
    for appended in (long, other):
        y_more, grads_more = run_with_gradients(appended, weight, state, seen)
        assert torch.equal(y_more[:, :seen], y)
        assert torch.equal(grads_more[0][:, :seen], grads[0])
        assert not grads_more[0][:, seen:].any()
        assert torch.equal(grads_more[1], grads[1]), "the taps' gradient moved with tokens the loss does not see"
        assert torch.equal(grads_more[2], grads[2])


@settings(max_examples=40, deadline=None)
@given(T=st.integers(2, 30), cut=st.integers(1, 29))
def test_any_split_with_carried_state_equals_the_whole_to_the_bit(T, cut):
    cut = min(cut, T - 1)
    x, weight, state = (
        rows(2, T, 5, dtype=torch.float32),
        rows(5, 4, seed=1, dtype=torch.float32),
        rows(2, 3, 5, seed=2),
    )
    state = state.float()
    kept = state.clone()
    whole, end = ops.short_conv(x, weight, state)
    first, middle = ops.short_conv(x[:, :cut], weight, state)
    second, last = ops.short_conv(x[:, cut:], weight, middle)
    assert torch.equal(torch.cat([first, second], dim=1), whole)
    assert torch.equal(last, end)
    assert torch.equal(state, kept), "the given state was changed"


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_packed_segments_never_look_across_a_start(lengths):
    N, T = len(lengths), sum(lengths)
    x, weight, state = rows(1, T, 5), rows(5, 4, seed=1), rows(N, 3, 5, seed=2)
    y, new = ops.short_conv(x, weight, state, cuts(*lengths))
    bare, _ = ops.short_conv(x, weight, cu_seqlens=cuts(*lengths))
    for n, (a, b) in enumerate(pairwise(cuts(*lengths).tolist())):
        alone, end = ops.short_conv(x[:, a:b], weight, state[n : n + 1])
        assert torch.equal(y[:, a:b], alone)
        assert torch.equal(new[n : n + 1], end)
        assert torch.equal(bare[:, a:b], ops.short_conv(x[:, a:b], weight)[0])


def test_packed_gradients_equal_those_of_the_segments():
    lengths = (3, 1, 4, 2)
    cu = cuts(*lengths)
    tensors = [x.requires_grad_() for x in (rows(1, 10, 3), rows(3, 4, seed=1), rows(4, 3, 3, seed=2))]
    x, weight, state = tensors
    weights_y, weights_state = rows(1, 10, 3, seed=3), rows(4, 3, 3, seed=4)
    y, new = ops.short_conv(x, weight, state, cu)
    packed = torch.autograd.grad((y * weights_y).sum() + (new * weights_state).sum(), tensors)
    loss = torch.zeros((), dtype=torch.float64)
    for n, (a, b) in enumerate(pairwise(cu.tolist())):
        y, new = torch_conv(x[:, a:b], weight, state[n : n + 1])
        loss = loss + (y * weights_y[:, a:b]).sum() + (new * weights_state[n : n + 1]).sum()
    for ours, expected in zip(packed, torch.autograd.grad(loss, tensors), strict=True):
        assert_close(ours, expected, "gradient")


@pytest.mark.parametrize("cu", [None, cuts(2, 2), cuts(1, 3)], ids=["rows", "equal", "ragged"])
@pytest.mark.parametrize("T", [1, 2, 4])
def test_gradcheck_of_the_convolution(T, cu):
    if cu is not None and T != 4:
        cu = cuts(T)
    N = 2 if cu is None else len(cu) - 1
    B = 2 if cu is None else 1
    tensors = [x.requires_grad_() for x in (rows(B, T, 2), rows(2, 4, seed=1), rows(N, 3, 2, seed=2))]
    assert torch.autograd.gradcheck(lambda *x: ops.short_conv(*x, cu), tensors)


def test_low_precision_is_summed_in_float32_and_the_state_keeps_raw_inputs():
    x, weight = rows(2, 9, 4, dtype=torch.bfloat16), rows(4, 4, seed=1, dtype=torch.bfloat16)
    y, state = ops.short_conv(x, weight)
    assert torch.equal(y, ops.short_conv(x.float(), weight.float())[0].bfloat16())
    assert state.dtype is torch.bfloat16
    assert torch.equal(state, x[:, -3:])
    _, wide = ops.short_conv(x, weight, torch.zeros(2, 3, 4))
    assert wide.dtype is torch.float32


def test_the_returned_state_owns_its_storage():
    x = rows(2, 50, 4)
    _, state = ops.short_conv(x, rows(4, 4, seed=1))
    assert state.untyped_storage().nbytes() == state.numel() * state.element_size()


@pytest.mark.parametrize("T", [65_536, 65_537])
def test_very_long_rows_are_exact(T):
    x, weight = rows(1, T, 2), rows(2, 4, seed=1)
    y, state = ops.short_conv(x, weight)
    expected, end = torch_conv(x, weight, torch.zeros(1, 3, 2, dtype=torch.float64))
    assert_close(y, expected, "operation")
    assert torch.equal(state, end)
