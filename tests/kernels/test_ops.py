"""The list of operations: every refusal is one plain sentence with the value, the limit and the way out."""

import inspect
import re

import pytest
import torch

from statewell.errors import ShapeError
from statewell.kernels import ops
from statewell.kernels.reference import OPS

PUBLIC = {
    name: fn
    for name, fn in vars(ops).items()
    if inspect.isfunction(fn) and fn.__module__ == ops.__name__ and not name.startswith("_")
}


def rows(*shape):
    return torch.zeros(*shape)


def delta_inputs(B=2, T=5, H=2, HV=4, K=8, V=6):
    return {
        "q": rows(B, T, H, K),
        "k": rows(B, T, H, K),
        "v": rows(B, T, HV, V),
        "g": rows(B, T, HV, K),
        "beta": rows(B, T, HV),
    }


def step_inputs(N=3, H=2, HV=4, K=8, V=6):
    inputs = delta_inputs(1, N, H, HV, K, V)
    return {name: x[0] for name, x in inputs.items()} | {"state": rows(N, HV, K, V)}


def test_every_operation_has_a_reference_and_the_other_way_round():
    assert set(PUBLIC) == set(OPS)


@pytest.mark.parametrize("name", PUBLIC, ids=str)
def test_every_docstring_names_a_test_that_exists_as_its_oracle(name, request):
    doc = inspect.getdoc(PUBLIC[name])
    assert "Oracle:" in doc
    for path in re.findall(r"tests/kernels/\w+\.py", doc):
        assert (request.config.rootpath / path).exists(), f"{path} does not exist"


@pytest.mark.parametrize("name", PUBLIC, ids=str)
def test_reference_functions_take_the_same_arguments_in_the_same_order(name):
    given = list(inspect.signature(PUBLIC[name]).parameters)
    taken = list(inspect.signature(OPS[name]).parameters)
    assert taken == given


def replaced(inputs, **changes):
    return {**inputs, **changes}


LATENT = {"q": rows(2, 5, 3, 10), "latent": rows(2, 5, 7), "rope": rows(2, 5, 4), "up": rows(3, 11, 7)}
QKV = {"q": rows(2, 5, 4, 8), "k": rows(2, 9, 2, 8), "v": rows(2, 9, 2, 6)}
PACKED = {"q": rows(1, 5, 4, 8), "k": rows(1, 9, 2, 8), "v": rows(1, 9, 2, 6)}
EXPERTS = {
    "x": rows(5, 4),
    "index": torch.zeros(5, 2, dtype=torch.int64),
    "weight": rows(5, 2),
    "w1": rows(3, 6, 4),
    "w3": rows(3, 6, 4),
    "w2": rows(3, 7, 6),
    "activation": torch.mul,
}
ROUTE = {"x": rows(2, 5, 4), "weight": rows(6, 4), "bias": rows(6), "top_k": 2}
GATE = {"z": rows(2, 5, 4, 8), "A_log": rows(4), "dt_bias": rows(4, 8)}
LINEAR = {name: x for name, x in delta_inputs().items() if name in "qkv"}

# operation, its arguments with one of them wrong, and what the sentence must say
REFUSALS = [
    ("kda", replaced(delta_inputs(), q=rows(2, 5, 8)), "q has shape (2, 5, 8), 4 axes [B, T, H, K]"),
    ("kda", replaced(delta_inputs(), k=rows(2, 4, 2, 8)), "k has shape (2, 4, 2, 8), the other tensors need"),
    ("kda", replaced(delta_inputs(), v=rows(2, 5, 3, 6)), "3 value heads cannot share 2 query/key heads"),
    ("kda", replaced(delta_inputs(), g=rows(2, 5, 4)), "need [B, T, HV, K] = (2, 5, 4, 8)"),
    ("kda", replaced(delta_inputs(), beta=rows(2, 5, 2)), "need [B, T, HV] = (2, 5, 4)"),
    ("kda", replaced(delta_inputs(), state=rows(2, 4, 6, 8)), "need [N, HV, K, V] = (2, 4, 8, 6)"),
    ("kda", replaced(delta_inputs(), k=rows(2, 5, 2, 8).long()), "k is torch.int64, a floating-point dtype"),
    (
        "kda",
        replaced(delta_inputs(), k=rows(2, 5, 2, 8).to("meta")),
        "k is on meta, the tensors before it on cpu",
    ),
    (
        "kda",
        replaced(delta_inputs(), cu_seqlens=torch.tensor([0, 10])),
        "2 rows came with cu_seqlens, which needs 1",
    ),
    (
        "kda",
        replaced(delta_inputs(B=1), cu_seqlens=torch.tensor([0.0, 5.0])),
        "whole numbers [N+1] are needed",
    ),
    ("kda", replaced(delta_inputs(B=1), cu_seqlens=torch.tensor([0])), "N >= 1"),
    (
        "kda",
        replaced(delta_inputs(B=1), cu_seqlens=torch.tensor([False, True])),
        "whole numbers [N+1] are needed",
    ),
    (
        "kda",
        replaced(delta_inputs(B=1), cu_seqlens=torch.tensor([0, 5], device="meta")),
        "cu_seqlens is on meta, the tensors on cpu",
    ),
    (
        "kda",
        replaced(delta_inputs(B=1), cu_seqlens=torch.tensor([1, 5])),
        "goes from 1 to 5, it must rise from 0 to the 5",
    ),
    (
        "kda",
        replaced(delta_inputs(B=1), cu_seqlens=torch.tensor([0, 4])),
        "goes from 0 to 4, it must rise from 0 to the 5",
    ),
    (
        "kda",
        replaced(delta_inputs(B=1), cu_seqlens=torch.tensor([0, 3, 2, 5])),
        "it must rise from 0 to the 5",
    ),
    (
        "kda",
        replaced(delta_inputs(B=1), cu_seqlens=torch.tensor([0, 2, 5]), state=rows(1, 4, 8, 6)),
        "= (2, 4, 8, 6)",
    ),
    (
        "gated_delta",
        delta_inputs(),
        "g has shape (2, 5, 4, 8), the other tensors need [B, T, HV] = (2, 5, 4)",
    ),
    ("linear", replaced(LINEAR, state=rows(2, 4, 8, 6)), "with normalize=True the state is the pair (S, z)"),
    (
        "linear",
        replaced(LINEAR, normalize=False, state=(rows(2, 4, 8, 6), rows(2, 4, 8))),
        "the state is S alone",
    ),
    ("linear", replaced(LINEAR, state=(rows(2, 4, 8, 6), rows(2, 4, 6))), "z has shape (2, 4, 6)"),
    ("kda_step", replaced(step_inputs(), state=None), "no state came, a step continues one"),
    ("kda_step", replaced(step_inputs(), g=rows(3, 4)), "need [N, HV, K] = (3, 4, 8)"),
    ("kda_step", replaced(step_inputs(), state=rows(2, 4, 8, 6)), "need [N, HV, K, V] = (3, 4, 8, 6)"),
    ("gated_delta_step", step_inputs(), "need [N, HV] = (3, 4)"),
    ("attention", replaced(QKV, q=rows(2, 5, 3, 8)), "3 query heads cannot share 2 key heads"),
    ("attention", replaced(QKV, k=rows(2, 9, 2, 6)), "need [B, S, Hk, K] = (2, 9, 2, 8)"),
    ("attention", replaced(QKV, q=rows(2, 10, 4, 8)), "10 queries came with 9 keys, at least 10 are needed"),
    ("attention", replaced(QKV, cu_seqlens_k=torch.tensor([0, 9])), "cu_seqlens_k came without cu_seqlens"),
    (
        "attention",
        replaced(PACKED, cu_seqlens=torch.tensor([0, 1, 5]), cu_seqlens_k=torch.tensor([0, 6, 9])),
        "4 queries came with 3 keys",
    ),
    (
        "attention",
        replaced(PACKED, cu_seqlens=torch.tensor([0, 1, 5]), cu_seqlens_k=torch.tensor([0, 9])),
        "2 segments of queries came with 1 of keys",
    ),
    ("mla", replaced(LATENT, latent=rows(2, 9, 7), rope=rows(2, 9, 4)), "need [B, T, R] = (2, 5, 7)"),
    ("mla", replaced(LATENT, up=rows(3, 6, 7)), "leaves a key or a value empty"),
    ("mla", replaced(LATENT, rope=rows(2, 5, 10)), "leaves a key or a value empty"),
    ("mla_absorbed", replaced(LATENT, up=rows(2, 11, 7)), "need [H, Kn+V, R] = (3, 11, 7)"),
    ("mla_absorbed", replaced(LATENT, q=rows(2, 6, 3, 10)), "6 queries came with 5 keys"),
    ("short_conv", {"x": rows(2, 5, 4), "weight": rows(4, 1, 4)}, "2 axes [D, W] are needed"),
    ("short_conv", {"x": rows(2, 5, 4), "weight": rows(3, 4)}, "need [D, W] = (4, 4)"),
    (
        "short_conv",
        {"x": rows(2, 5, 4), "weight": rows(4, 4), "state": rows(2, 4, 3)},
        "need [N, W-1, D] = (2, 3, 4)",
    ),
    ("attn_res", {"sources": [], "norm_weight": rows(4), "proj_weight": rows(4)}, "0 sources came"),
    (
        "attn_res",
        {"sources": [rows(2, 4), rows(3, 4)], "norm_weight": rows(4), "proj_weight": rows(4)},
        "sources[1] has shape (3, 4)",
    ),
    (
        "attn_res",
        {"sources": [rows(2, 4)], "norm_weight": rows(4), "proj_weight": rows(1, 4)},
        "need [D] = (4,)",
    ),
    ("swiglu", {"gate": rows(2, 4), "up": rows(2, 5)}, "up has shape (2, 5)"),
    ("situ", {"gate": rows(2, 4), "up": rows(2, 5)}, "up has shape (2, 5)"),
    ("route", replaced(ROUTE, top_k=0), "top_k is 0, 6 experts allow 1 to 6"),
    ("route", replaced(ROUTE, top_k=7), "top_k is 7, 6 experts allow 1 to 6"),
    ("route", replaced(ROUTE, bias=rows(5)), "bias has shape (5,), the other tensors need [E] = (6,)"),
    ("experts", replaced(EXPERTS, w2=rows(3, 7, 5)), "need [E, Dout, I] = (3, 7, 6)"),
    ("experts", replaced(EXPERTS, index=rows(5, 2).int()), "index is torch.int32, torch.int64 is needed"),
    ("experts", replaced(EXPERTS, weight=rows(5, 3)), "need [M, k] = (5, 2)"),
    (
        "experts",
        replaced(EXPERTS, index=torch.full((5, 2), 3)),
        "index goes from 3 to 3, 3 experts allow 0 to 2",
    ),
    ("experts", replaced(EXPERTS, index=torch.full((5, 2), -1)), "index goes from -1 to -1"),
    ("l2norm", {"x": rows(4).long()}, "x is torch.int64"),
    ("rms_norm", {"x": rows(3, 4), "weight": rows(3), "eps": 1e-5}, "need [D] = (4,)"),
    (
        "gated_rms_norm",
        {"x": rows(3, 4), "weight": rows(4), "gate": rows(4), "eps": 1e-5, "activation": torch.sigmoid},
        "gate has shape (4,)",
    ),
    (
        "decay_gate",
        replaced(GATE, dt_bias=rows(32)),
        "A_log has shape (4,), the other tensors need [HV] = (32,)",
    ),
    ("decay_gate", replaced(GATE, dt_bias=rows(1, 4, 8)), "[HV] or [HV, K] is needed"),
    ("bounded_gate", replaced(GATE, lower_bound=5.0), "lower_bound is 5.0, a log retention is below 0"),
    ("bounded_gate", replaced(GATE, lower_bound=-5.0, dt_bias=rows(4, 4)), "dt_bias has shape (4, 4)"),
]


@pytest.mark.parametrize(("op", "arguments", "words"), REFUSALS, ids=[f"{op}: {words}" for op, _, words in REFUSALS])
def test_a_tensor_that_does_not_fit_is_refused_in_one_sentence(op, arguments, words):
    taken = inspect.signature(PUBLIC[op]).parameters
    with pytest.raises(ShapeError) as refusal:
        PUBLIC[op](**{name: x for name, x in arguments.items() if name in taken})
    sentence = str(refusal.value)
    assert words in sentence
    assert sentence.startswith(f"{op}: ")
    assert sentence.endswith(".")
    assert "\n" not in sentence


@pytest.mark.parametrize("op", ["linear", "delta", "gated_delta", "kda"])
def test_a_given_state_is_not_changed_and_a_new_one_is_returned(op):
    generator = torch.Generator().manual_seed(0)
    inputs = {name: torch.rand(x.shape, generator=generator) for name, x in delta_inputs().items()}
    inputs["g"] = -inputs["g"][..., 0] if op == "gated_delta" else -inputs["g"]
    state = torch.rand(2, 4, 8, 6, generator=generator)
    state = (state, torch.rand(2, 4, 8, generator=generator)) if op == "linear" else state
    before = [x.clone() for x in (state if op == "linear" else [state])]
    taken = inspect.signature(PUBLIC[op]).parameters
    _, new = PUBLIC[op](**{name: x for name, x in inputs.items() if name in taken}, state=state)
    held = state if op == "linear" else [state]
    returned = new if op == "linear" else [new]
    for x, kept, y in zip(held, before, returned, strict=True):
        assert torch.equal(x, kept)
        assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        assert y.dtype is torch.float32


@pytest.mark.parametrize("op", ["linear", "delta", "gated_delta", "kda"])
def test_one_step_equals_one_token_of_the_row_form(op):
    generator = torch.Generator().manual_seed(1)
    inputs = {name: torch.rand(x.shape, generator=generator).double() for name, x in delta_inputs(T=1).items()}
    inputs["g"] = -inputs["g"][..., 0] if op == "gated_delta" else -inputs["g"]
    state = torch.rand(2, 4, 8, 6, generator=generator).double()
    state = (state, torch.rand(2, 4, 8, generator=generator).double()) if op == "linear" else state
    inputs = {name: x for name, x in inputs.items() if name in inspect.signature(PUBLIC[op]).parameters}
    o, new = PUBLIC[op](**inputs, state=state)
    o_step, new_step = PUBLIC[f"{op}_step"](**{name: x[:, 0] for name, x in inputs.items()}, state=state)
    torch.testing.assert_close(o[:, 0], o_step, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(new, new_step, rtol=1e-12, atol=1e-12)
