"""Attention and MLA: the fast forms against the explicit softmax, causal to the bit, packed, long."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from statewell.kernels import ops
from statewell.kernels.reference import attention as reference
from tests.tolerances import assert_close, relative_rms

# (B, T, S, H, Hk, K, V): training, grouped and shared keys, K above and below V, decode, a later chunk
RECTANGLES = [
    (2, 1, 1, 2, 2, 8, 8),
    (2, 37, 37, 4, 4, 8, 8),
    (1, 130, 130, 4, 2, 16, 8),
    (2, 33, 33, 4, 1, 8, 12),
    (2, 1, 75, 4, 2, 8, 8),
    (1, 1, 75, 4, 4, 12, 8),
    (2, 5, 75, 4, 2, 8, 8),
    (1, 7, 9, 3, 3, 8, 12),
]


def rows(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def qkv(B, T, S, H, Hk, K, V, dtype=torch.float64):
    return (
        rows(B, T, H, K, seed=1, dtype=dtype),
        rows(B, S, Hk, K, seed=2, dtype=dtype),
        rows(B, S, Hk, V, seed=3, dtype=dtype),
    )


def latents(B, T, S, H=3, Kn=6, P=4, R=7, V=5, dtype=torch.float64):
    """q, latent, rope, up of a latent attention with more queries per head than any two widths share."""
    return (
        rows(B, T, H, Kn + P, seed=4, dtype=dtype),
        rows(B, S, R, seed=5, dtype=dtype),
        rows(B, S, P, seed=6, dtype=dtype),
        rows(H, Kn + V, R, seed=7, dtype=dtype),
    )


def expand(q, latent, rope, up):
    """The keys and values that MLA means, head by head, for the explicit softmax."""
    Kn = q.shape[-1] - rope.shape[-1]
    made = torch.einsum("bsr,hor->bsho", latent, up)
    shared = rope[:, :, None].expand(-1, -1, up.shape[0], -1)
    return torch.cat([made[..., :Kn], shared], dim=-1), made[..., Kn:]


def bounds(*lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def gradients(run, tensors, first=None):
    """Gradients of a fixed random loss on the first tokens of run's output."""
    tensors = [x.detach().clone().requires_grad_() for x in tensors]
    o = run(*tensors)
    o = o if first is None else o[:, :first]
    return torch.autograd.grad((o * rows(*o.shape, seed=9, dtype=o.dtype)).sum(), tensors)


@pytest.mark.parametrize("rectangle", RECTANGLES, ids=str)
def test_fast_attention_equals_the_explicit_softmax_with_all_gradients(rectangle):
    q, k, v = qkv(*rectangle)
    scale = 0.3
    assert_close(ops.attention(q, k, v, scale), reference.attention_direct(q, k, v, scale), "operation")
    fast = gradients(lambda *x: ops.attention(*x, scale), (q, k, v))
    direct = gradients(lambda *x: reference.attention_direct(*x, scale), (q, k, v))
    for ours, expected in zip(fast, direct, strict=True):
        assert_close(ours, expected, "gradient")


@pytest.mark.parametrize("rectangle", RECTANGLES, ids=str)
def test_float32_attention_stays_within_the_limit_of_float64(rectangle):
    q, k, v = qkv(*rectangle, dtype=torch.float32)
    exact = reference.attention_direct(q.double(), k.double(), v.double(), q.shape[-1] ** -0.5)
    assert_close(ops.attention(q, k, v), exact, "operation")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_are_attended_in_float32_and_cast_back(dtype):
    q, k, v = qkv(2, 9, 9, 4, 2, 8, 8, dtype=dtype)
    o = ops.attention(q, k, v)
    assert o.dtype is dtype
    assert torch.equal(o, ops.attention(q.float(), k.float(), v.float()).to(dtype))


def test_a_long_memory_is_attended_in_query_blocks(monkeypatch):
    q, k, v = qkv(1, 50, 90, 2, 1, 8, 8)
    whole = ops.attention(q, k, v)
    monkeypatch.setattr(reference, "BLOCK_SCORES", 90 * 16)
    assert_close(ops.attention(q, k, v), whole, "operation")
    assert_close(whole, reference.attention_direct(q, k, v, 8**-0.5), "operation")


def test_queries_of_a_long_memory_see_the_end_of_it_not_the_start():
    q, k, v = qkv(1, 5, 12, 2, 2, 8, 8)
    full_q = torch.cat([rows(1, 7, 2, 8, seed=8), q], dim=1)
    assert_close(ops.attention(q, k, v), ops.attention(full_q, k, v)[:, 7:], "operation")


FORMS = {
    "attention": (lambda q, k, v: ops.attention(q, k, v), lambda: qkv(2, 37, 37, 4, 2, 8, 8)),
    "attention after a memory": (
        lambda q, k, v: ops.attention(q, k[:, :], v),
        lambda: qkv(2, 37, 60, 4, 2, 8, 8),
    ),
    "mla": (ops.mla, lambda: latents(2, 37, 37)),
    "mla absorbed": (ops.mla_absorbed, lambda: latents(2, 37, 37)),
    "mla absorbed after a memory": (ops.mla_absorbed, lambda: latents(2, 37, 60)),
}


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("seen", [1, 2, 16, 36])
def test_later_tokens_change_no_bit_of_earlier_outputs_and_gradients(form, dtype, seen):
    run, make = FORMS[form]
    tensors = [x.to(dtype) for x in make()]
    T = tensors[0].shape[1]
    changed = [x.clone() for x in tensors]
    for n, x in enumerate(changed):
        if x.shape[0] == tensors[0].shape[0]:  # not `up`, which is a weight
            later = x.shape[1] - (T - seen)
            x[:, later:] = 3 * rows(*x[:, later:].shape, seed=20 + n, dtype=dtype)
    assert torch.equal(run(*tensors)[:, :seen], run(*changed)[:, :seen])
    before, after = gradients(run, tensors, first=seen), gradients(run, changed, first=seen)
    for x, a, b in zip(tensors, before, after, strict=True):
        if x.shape[0] != tensors[0].shape[0]:
            assert torch.equal(a, b), "the weight's gradient moved with later tokens"
            continue
        later = x.shape[1] - (T - seen)
        assert torch.equal(a[:, :later], b[:, :later])
        assert not b[:, later:].any(), "a later token got a gradient from an earlier output"


def test_absorbed_mla_equals_expanded_mla_equals_the_definition():
    tensors = latents(2, 21, 21)
    k, v = expand(*tensors)
    direct = reference.attention_direct(tensors[0], k, v, 0.4)
    assert_close(ops.mla(*tensors, 0.4), direct, "operation")
    assert_close(ops.mla_absorbed(*tensors, 0.4), direct, "operation")
    for ours, expected in zip(gradients(ops.mla, tensors), gradients(ops.mla_absorbed, tensors), strict=True):
        assert_close(ours, expected, "gradient")


def test_float32_latent_attention_stays_within_the_limit_of_float64():
    tensors = latents(2, 21, 21, dtype=torch.float32)
    wide = [x.double() for x in tensors]
    k, v = expand(*wide)
    exact = reference.attention_direct(wide[0], k, v, wide[0].shape[-1] ** -0.5)
    assert_close(ops.mla(*tensors), exact, "operation")
    assert_close(ops.mla_absorbed(*tensors), exact, "operation")


def test_absorbed_mla_takes_query_blocks_and_single_queries_over_a_longer_memory(monkeypatch):
    q, latent, rope, up = latents(2, 9, 40)
    k, v = expand(q, latent, rope, up)
    direct = reference.attention_direct(q, k, v, q.shape[-1] ** -0.5)
    assert_close(ops.mla_absorbed(q, latent, rope, up), direct, "operation")
    assert_close(ops.mla_absorbed(q[:, -1:], latent, rope, up), direct[:, -1:], "operation")
    monkeypatch.setattr(reference, "BLOCK_SCORES", 40 * 3 * 4)
    assert_close(ops.mla_absorbed(q, latent, rope, up), direct, "operation")


def test_mla_alone_does_not_see_the_order_of_earlier_tokens():
    q, latent, rope, up = latents(1, 1, 30)
    order = torch.cat([torch.randperm(29, generator=torch.Generator().manual_seed(0)), torch.tensor([29])])
    mixed = ops.mla_absorbed(q, latent[:, order], rope[:, order], up)
    assert_close(mixed, ops.mla_absorbed(q, latent, rope, up), "operation")
    q, latent, rope, up = latents(1, 30, 30)
    whole = ops.mla(q[:, order], latent[:, order], rope[:, order], up)
    assert_close(whole[:, -1], ops.mla(q, latent, rope, up)[:, -1], "operation")


@pytest.mark.parametrize("lengths", [(1,), (1, 2, 3), (4, 4, 4), (5, 1, 5, 2, 5), (3, 0, 2), (0, 0, 6)], ids=str)
def test_packed_segments_are_attended_apart(lengths):
    T = sum(lengths)
    q, k, v = qkv(1, T, T, 4, 2, 8, 8)
    cu = bounds(*lengths)
    packed = ops.attention(q, k, v, cu_seqlens=cu)
    alone = [ops.attention(*(x[:, a:b] for x in (q, k, v))) for a, b in pairwise(cu.tolist()) if b > a]
    assert_close(packed, torch.cat(alone, dim=1), "operation")
    assert_close(packed, reference.attention_direct(q, k, v, 8**-0.5, cu), "operation")
    tensors = latents(1, T, T)
    parts = [
        ops.mla(tensors[0][:, a:b], tensors[1][:, a:b], tensors[2][:, a:b], tensors[3])
        for a, b in pairwise(cu.tolist())
        if b > a
    ]
    assert_close(ops.mla(*tensors, cu_seqlens=cu), torch.cat(parts, dim=1), "operation")
    assert_close(ops.mla_absorbed(*tensors, cu_seqlens=cu), torch.cat(parts, dim=1), "operation")


def test_packed_gradients_equal_those_of_the_definition():
    q, k, v = qkv(1, 9, 9, 4, 2, 8, 8)
    cu = bounds(4, 1, 4)
    fast = gradients(lambda *x: ops.attention(*x, cu_seqlens=cu), (q, k, v))
    direct = gradients(lambda *x: reference.attention_direct(*x, 8**-0.5, cu), (q, k, v))
    for ours, expected in zip(fast, direct, strict=True):
        assert_close(ours, expected, "gradient")


def test_packed_queries_meet_memories_of_other_lengths():
    q, k, v = qkv(1, 6, 21, 4, 2, 8, 8)
    cu, cu_k = bounds(1, 3, 1, 1), bounds(5, 7, 5, 4)
    direct = reference.attention_direct(q, k, v, 8**-0.5, cu, cu_k)
    assert_close(ops.attention(q, k, v, cu_seqlens=cu, cu_seqlens_k=cu_k), direct, "operation")
    q, latent, rope, up = latents(1, 6, 21)
    k, v = expand(q, latent, rope, up)
    direct = reference.attention_direct(q, k, v, q.shape[-1] ** -0.5, cu, cu_k)
    absorbed = ops.mla_absorbed(q, latent, rope, up, cu_seqlens=cu, cu_seqlens_k=cu_k)
    assert_close(absorbed, direct, "operation")


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_any_packing_equals_the_segments_one_by_one(lengths):
    T = sum(lengths)
    q, k, v = qkv(1, T, T, 2, 1, 4, 6)
    cu = bounds(*lengths)
    assert_close(ops.attention(q, k, v, cu_seqlens=cu), reference.attention_direct(q, k, v, 0.5, cu), "operation")


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(1, 22))
def test_a_prompt_cut_anywhere_attends_as_the_whole(cut):
    q, k, v = qkv(2, 23, 23, 2, 2, 4, 4)
    parts = torch.cat([ops.attention(q[:, :cut], k[:, :cut], v[:, :cut]), ops.attention(q[:, cut:], k, v)], dim=1)
    assert_close(parts, ops.attention(q, k, v), "operation")


def test_equal_segments_are_one_call_of_the_fused_kernel(monkeypatch):
    calls = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        reference.F,
        "scaled_dot_product_attention",
        lambda *x, **options: calls.append(x[0].shape) or fused(*x, **options),
    )
    q, k, v = qkv(1, 64, 64, 2, 2, 8, 8)
    ops.attention(q, k, v, cu_seqlens=bounds(16, 16, 16, 16))
    assert calls == [(4, 2, 16, 8)]


class NewStorage(TorchDispatchMode):
    """Counts the elements of every tensor made inside it; views of tensors that were there do not count."""

    def __init__(self, *there):
        super().__init__()
        self.there = {x.untyped_storage().data_ptr() for x in there}
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple) else (out,):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self.there:
                self.sizes.append(x.numel())
        return out


def test_no_score_matrix_is_held_for_a_long_row():
    T = 4096
    q, k, v = qkv(1, T, T, 1, 1, 8, 6, dtype=torch.float32)
    with NewStorage(q, k, v) as made:
        ops.attention(q, k, v)
        ops.attention(q[:, T // 2 :], k, v)
    assert max(made.sizes) <= reference.BLOCK_SCORES < T * T / 4


def test_a_single_query_copies_neither_keys_nor_latents_per_head():
    S, H = 2048, 8
    q, k, v = qkv(2, 1, S, H, 2, 16, 16, dtype=torch.float32)
    with NewStorage(q, k, v) as made:
        ops.attention(q, k, v)
    assert max(made.sizes) <= 2 * H * S
    q, latent, rope, up = latents(2, 1, S, H=H, R=64, dtype=torch.float32)
    with NewStorage(q, latent, rope, up) as made:
        ops.mla_absorbed(q, latent, rope, up)
    assert max(made.sizes) <= 2 * H * S < latent.numel()


@pytest.mark.parametrize("form", [ops.mla, ops.mla_absorbed], ids=["mla", "mla absorbed"])
def test_a_row_of_many_tiles_is_causal_to_the_bit_as_well(form):
    q, latent, rope, up = latents(1, 700, 700, Kn=20, P=12, R=24, V=20, dtype=torch.float32)
    seen = 333
    other = [x.clone() for x in (q, latent, rope)]
    for x in other:
        x[:, seen:] = 5.0
    assert torch.equal(form(*other, up)[:, :seen], form(q, latent, rope, up)[:, :seen])
    for a, b in zip(
        gradients(form, (*other, up), first=seen),
        gradients(form, (q, latent, rope, up), first=seen),
        strict=True,
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("T", [1, 3])
def test_gradcheck_of_attention_and_both_latent_forms(T):
    q, k, v = (x.requires_grad_() for x in qkv(1, T, 4 if T == 1 else T, 2, 1, 3, 3))
    assert torch.autograd.gradcheck(lambda *x: ops.attention(*x), (q, k, v))
    tensors = [x.requires_grad_() for x in latents(1, T, T, H=2, Kn=2, P=1, R=3, V=2)]
    assert torch.autograd.gradcheck(ops.mla, tensors)
    assert torch.autograd.gradcheck(ops.mla_absorbed, tensors)


@pytest.mark.slow
@pytest.mark.parametrize("T", [65_536, 65_537])
def test_the_last_query_of_a_very_long_memory_is_exact(T):
    q, k, v = qkv(1, 1, T, 2, 1, 8, 8)
    expected = reference.attention_direct(q, k, v, 8**-0.5)
    assert_close(ops.attention(q, k, v), expected, "operation")
    q, latent, rope, up = latents(1, 2, T)
    k, v = expand(q, latent, rope, up)
    expected = reference.attention_direct(q, k, v, q.shape[-1] ** -0.5)
    assert_close(ops.mla_absorbed(q, latent, rope, up), expected, "operation")


def test_scale_is_one_over_the_root_of_the_query_width_unless_given():
    q, k, v = qkv(1, 5, 5, 2, 2, 16, 16)
    assert torch.equal(ops.attention(q, k, v), ops.attention(q, k, v, 0.25))
    assert relative_rms(ops.attention(q, k, v), ops.attention(q, k, v, 0.5)) > 1e-3
    q, latent, rope, up = latents(1, 5, 5, Kn=12, P=4)
    assert torch.equal(ops.mla(q, latent, rope, up), ops.mla(q, latent, rope, up, 0.25))
    assert torch.equal(ops.mla_absorbed(q, latent, rope, up), ops.mla_absorbed(q, latent, rope, up, 0.25))
