"""Attention residuals: golden vectors, the written formula, gradients of every source and weight."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from statewell.kernels import ops
from tests.tolerances import assert_close

GOLDEN = Path(__file__).parents[1] / "golden" / "ops" / "parts.safetensors"


def rows(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def written_out(sources, norm_weight, proj_weight, eps=1e-5):
    """The formula with everything stacked."""
    v = torch.stack(list(sources))
    k = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps) * norm_weight
    a = (k @ proj_weight).softmax(dim=0)
    return (a[..., None] * v).sum(dim=0)


def sources_of(S, dtype=torch.float64):
    """Outputs of growing size, as along a depth."""
    return [rows(2, 3, 8, seed=s, dtype=dtype) * (1 + s) for s in range(S)]


@pytest.mark.parametrize("L", [1, 2, 5, 9])
def test_golden_attention_residuals(L):
    golden = {name.split("/")[1]: x for name, x in load_file(GOLDEN).items() if name.startswith(f"attnres_L{L}/")}
    sources = golden["sources"].double().unbind(0)
    out = ops.attn_res(sources, golden["norm_weight"].double(), golden["proj"].double())
    assert (out - golden["out"]).abs().max() <= 1e-9
    normed = ops.rms_norm(out, golden["output_norm_weight"].double(), 1e-5)
    assert (normed - golden["out_prenormed"]).abs().max() <= 1e-9


@pytest.mark.parametrize("S", [2, 3, 9])
def test_it_equals_the_written_formula_with_all_gradients(S):
    inputs = [rows(8, seed=20), rows(8, seed=21), *sources_of(S)]
    results = []
    for run in (ops.attn_res, written_out):
        norm_weight, proj_weight, *sources = tensors = [x.clone().requires_grad_() for x in inputs]
        out = run(sources, norm_weight, proj_weight)
        results.append([out, *torch.autograd.grad((out * rows(2, 3, 8, seed=30)).sum(), tensors)])
    for ours, expected in zip(*results, strict=True):
        assert_close(ours, expected, "operation")


def test_one_source_is_the_identity():
    (source,) = sources_of(1)
    assert ops.attn_res([source], rows(8), rows(8, seed=1)) is source


def test_equal_scores_average_the_sources():
    sources = sources_of(4)
    mixed = ops.attn_res(sources, torch.ones(8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64))
    assert_close(mixed, torch.stack(sources).mean(dim=0), "operation")


def test_values_are_not_normed_but_scores_are():
    sources, w, p = sources_of(3), rows(8), rows(8, seed=1)
    scaled = [1000 * v for v in sources]
    assert_close(ops.attn_res(scaled, w, p, 0.0), 1000 * ops.attn_res(sources, w, p, 0.0), "operation")


def test_only_the_product_of_the_two_weights_matters():
    sources, w, p = sources_of(3), rows(8), rows(8, seed=1)
    swapped = ops.attn_res(sources, p, w)
    assert_close(swapped, ops.attn_res(sources, w, p), "operation")


def test_gradcheck_of_attention_residuals():
    tensors = [rows(4, seed=8), rows(4, seed=9), *(rows(2, 4, seed=s) for s in range(3))]
    tensors = [x.requires_grad_() for x in tensors]
    assert torch.autograd.gradcheck(lambda w, p, *sources: ops.attn_res(sources, w, p), tensors)


def test_a_source_of_zeros_and_one_given_twice_have_exact_gradients():
    base, w, p = (
        rows(2, 3, 8).requires_grad_(),
        rows(8, seed=1).requires_grad_(),
        rows(8, seed=2).requires_grad_(),
    )
    zero = torch.zeros(2, 3, 8, dtype=torch.float64, requires_grad=True)
    grads = []
    for run in (ops.attn_res, written_out):
        out = run([base, zero, base * 2, base], w, p)
        grads.append(torch.autograd.grad((out * rows(2, 3, 8, seed=3)).sum(), (base, zero, w, p)))
    for ours, expected in zip(*grads, strict=True):
        assert_close(ours, expected, "gradient")


def test_float32_stays_within_the_limit_and_bf16_is_mixed_in_float32():
    sources, w, p = sources_of(5, torch.float32), rows(8, seed=1).float(), rows(8, seed=2).float()
    exact = written_out([v.double() for v in sources], w.double(), p.double())
    assert_close(ops.attn_res(sources, w, p), exact, "operation")
    half = [v.bfloat16() for v in sources]
    mixed = ops.attn_res(half, w, p)
    assert mixed.dtype is torch.bfloat16
    assert torch.equal(mixed, ops.attn_res([v.float() for v in half], w, p).bfloat16())


def test_the_backward_keeps_the_sources_themselves_and_no_copy_of_them():
    sources, w, p = [v.requires_grad_() for v in sources_of(6)], rows(8, seed=1), rows(8, seed=2)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        ops.attn_res(sources, w, p)
    own = {v.untyped_storage().data_ptr() for v in sources}
    copies = [x for x in kept if x.untyped_storage().data_ptr() not in own]
    assert sum(x.numel() for x in copies) < sources[0].numel() * 3
    assert len([x for x in kept if x.untyped_storage().data_ptr() in own]) == 6
