"""The compiled pieces between the products: every instruction set against the float64 definition, on odd shapes,
with every gradient, into memory filled with NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from statewell.kernels import ops, registry
from statewell.kernels.cpu import binding
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(binding.native is None, reason=f"the cpu kernels cannot run: {binding.MISSING}")


def rows(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Standard normal numbers that are exact in float32, as float64."""
    draw = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, generator=draw)).double()


@dataclass(frozen=True)
class Case:
    """`run` on `inputs`; each of them gets a gradient. It returns a tensor or several."""

    name: str
    run: Callable
    inputs: tuple[Tensor, ...]

    def __str__(self) -> str:
        return self.name


def cuts(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def convolutions() -> Iterator[Case]:
    packed = cuts(3, 1, 0, 64, 67, 130)
    for W in (2, 3, 4):
        for T, D in ((1, 1), (2, 7), (63, 16), (64, 33), (200, 40)):
            tensors = (rows(2, T, D), rows(D, W, seed=1), rows(2, W - 1, D, seed=2))
            yield Case(f"short_conv W{W} T{T} D{D}", ops.short_conv, tensors)
        yield Case(f"short_conv W{W} without state", ops.short_conv, (rows(3, 70, 19), rows(19, W, seed=1)))
        tensors = (rows(1, 265, 21), rows(21, W, seed=1), rows(6, W - 1, 21, seed=2))
        yield Case(f"short_conv W{W} packed", lambda *x, cu=packed: ops.short_conv(*x, cu), tensors)


# A row of one number, or one saturated tanh, has a gradient that float32 cannot hold: 1 - t^2 with t near 1.
def norms() -> Iterator[Case]:
    for shape in ((1, 2), (3, 2, 16), (5, 31), (2, 70, 4, 32), (1000, 65), (7, 128), (3, 300)):
        x, weight, gate = rows(*shape), rows(shape[-1], seed=1), rows(*shape, seed=2, scale=3)
        size = "x".join(map(str, shape))
        yield Case(f"l2norm {size}", ops.l2norm, (x,))
        yield Case(f"rms_norm {size}", lambda x, w: ops.rms_norm(x, w, 1e-5), (x, weight))
        for act in (torch.sigmoid, F.silu, torch.tanh):
            yield Case(
                f"gated_rms_norm {act.__name__} {size}",
                lambda x, w, g, act=act: ops.gated_rms_norm(x, w, g, 1e-5, act),
                (x, weight, gate),
            )


def gates() -> Iterator[Case]:
    for rows_shape, HV, K in (((1,), 1, 1), ((3, 5), 4, 1), ((2, 67), 3, 7), ((1000,), 2, 33), ((129,), 5, 64)):
        per_head = K == 1
        z = rows(*rows_shape, HV, scale=6) if per_head else rows(*rows_shape, HV, K, scale=6)
        A_log, dt_bias = rows(HV, seed=1), rows(HV, seed=2) if per_head else rows(HV, K, seed=2)
        size = f"{'x'.join(map(str, rows_shape))} HV{HV} K{K}"
        yield Case(f"decay_gate {size}", ops.decay_gate, (z, A_log, dt_bias))
        for bound in (-5.0, -0.5):
            run = lambda z, A, b, bound=bound: ops.bounded_gate(z, A, b, bound)  # noqa: E731
            yield Case(f"bounded_gate {bound} {size}", run, (z / 6, A_log, dt_bias))
    for shape in ((3, 5), (7, 33), (2, 70, 257)):
        size = "x".join(map(str, shape))
        yield Case(f"swiglu {size}", ops.swiglu, (rows(*shape, scale=5), rows(*shape, seed=1)))
        for scale in (1e-3, 5.0):
            for linear in (25.0, 1.5, None):
                run = lambda g, u, linear=linear: ops.situ(g, u, 4.0, linear)  # noqa: E731
                inputs = (rows(*shape, scale=scale), rows(*shape, seed=1, scale=4 * scale))
                yield Case(f"situ {linear} {scale} {size}", run, inputs)


def depths_and_experts() -> Iterator[Case]:
    for S in (2, 3, 9):
        for shape in ((5, 3), (2, 3, 8), (500, 67)):
            sources = [rows(*shape, seed=s, scale=1 + s) for s in range(S)]
            weights = (rows(shape[-1], seed=20), rows(shape[-1], seed=21, scale=shape[-1] ** -0.5))
            run = lambda w, p, *v: ops.attn_res(v, w, p)  # noqa: E731
            yield Case(f"attn_res S{S} {'x'.join(map(str, shape))}", run, (*weights, *sources))
    for M, E, k in ((1, 1, 1), (7, 5, 2), (500, 8, 1), (333, 19, 4)):
        for renormalize in (True, False):
            run = lambda x, w, k=k, r=renormalize: ops.route(x, w, torch.zeros(len(w), dtype=w.dtype), k, 2.5, r)[1]  # noqa: E731
            yield Case(f"route M{M} E{E} k{k} {renormalize}", run, (rows(M, 6), rows(E, 6, seed=1)))
        draw = torch.Generator().manual_seed(3)
        # the last expert is never chosen where there is another choice
        index = torch.stack([torch.randperm(max(k, E - 1), generator=draw)[:k] for _ in range(M)])
        widths = ((E, 5, 6), (E, 5, 6), (E, 3, 5))
        inputs = (rows(M, 6), rows(M, k, seed=1), *(rows(*w, seed=4 + i) for i, w in enumerate(widths)))
        run = lambda x, w, *ws, index=index: ops.experts(x, index, w, *ws, ops.situ)  # noqa: E731
        yield Case(f"experts M{M} E{E} k{k}", run, inputs)


CASES = [*convolutions(), *norms(), *gates(), *depths_and_experts()]


@pytest.fixture(params=binding.instruction_sets(), autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every compiled instruction set this processor runs; fresh memory is NaN, so what is not written shows."""
    torch.use_deterministic_algorithms(True)
    with binding.use_instruction_set(request.param):
        yield request.param
    torch.use_deterministic_algorithms(False)


def run_case(case: Case, backend: str, dtype: torch.dtype) -> list[Tensor]:
    """Results, then the gradient of every input of the loss sum(results * fixed numbers)."""
    leaves = [x.to(dtype).requires_grad_() for x in case.inputs]
    with registry.use(backend):
        made = case.run(*leaves)
    results = made if isinstance(made, tuple) else (made,)
    loss = torch.stack([(rows(*r.shape, seed=40).to(dtype) * r).sum() for r in results if r.numel()]).sum()
    return [r.detach() for r in results] + list(torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_and_every_gradient_equal_the_float64_definition(case):
    expected = run_case(case, "reference", torch.float64)
    results = len(expected) - len(case.inputs)
    for i, (ours, exact) in enumerate(zip(run_case(case, "cpu", torch.float32), expected, strict=True)):
        if exact.numel():
            assert_close(ours, exact, "operation" if i < results else "gradient")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_threads_change_no_bit(case):
    threads = torch.get_num_threads()
    made = []
    for count in (1, 2):
        torch.set_num_threads(count)
        made.append(run_case(case, "cpu", torch.float32))
    torch.set_num_threads(threads)
    products = case.name.startswith(("experts", "route"))  # torch's own may split their sums
    for one, two in zip(*made, strict=True):
        assert torch.equal(one, two) or products


@pytest.mark.parametrize("case", CASES, ids=str)
def test_without_gradients_the_results_are_the_same(case):
    inputs = [x.float() for x in case.inputs]
    with registry.use("cpu"):
        plain, with_gradients = case.run(*inputs), case.run(*(x.clone().requires_grad_() for x in inputs))
    pairs = zip(plain, with_gradients, strict=True) if isinstance(plain, tuple) else [(plain, with_gradients)]
    assert all(torch.equal(a, b) for a, b in pairs)


def test_inputs_may_be_views_of_any_strides():
    for case in CASES:
        if case.name.startswith(("experts", "route")):
            continue
        leaves = [x.float() for x in case.inputs]
        strided = [x.repeat_interleave(2, dim=-1)[..., ::2] for x in leaves]
        with registry.use("cpu"):
            made, other = case.run(*leaves), case.run(*strided)
        if isinstance(made, tuple):
            made, other = made[0], other[0]
        assert torch.equal(made, other), case.name


def test_the_convolution_equals_the_definition_to_the_bit():
    x, weight, state = rows(2, 75, 37).float(), rows(37, 4, seed=1).float(), rows(2, 3, 37, seed=2).float()
    made = []
    for backend in ("cpu", "reference"):
        with registry.use(backend):
            made.append(ops.short_conv(x, weight, state))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*made, strict=True))


@pytest.mark.parametrize("seen", [1, 63, 64, 65, 130])
def test_the_convolution_and_its_gradients_are_causal_to_the_bit(seen):
    made = []
    for more in (0, 1, 90):
        x = torch.cat([rows(2, seen, 37), rows(2, more, 37, seed=more)], dim=1).float()
        leaves = [t.requires_grad_() for t in (x, rows(37, 4, seed=1).float(), rows(2, 3, 37, seed=2).float())]
        with registry.use("cpu"):
            y, _ = ops.short_conv(*leaves)
        grads = torch.autograd.grad((y[:, :seen] * rows(2, seen, 37, seed=3).float()).sum(), leaves)
        assert not grads[0][:, seen:].any()
        made.append([y[:, :seen], grads[0][:, :seen], *grads[1:]])
    for later in made[1:]:
        assert all(torch.equal(a, b) for a, b in zip(made[0], later, strict=True))


def test_a_packed_convolution_equals_its_segments_alone_to_the_bit():
    bounds = cuts(3, 1, 0, 64, 67, 130)
    x, weight, state = rows(1, 265, 21).float(), rows(21, 4, seed=1).float(), rows(6, 3, 21, seed=2).float()
    with registry.use("cpu"):
        y, new = ops.short_conv(x, weight, state, bounds)
        for n, (a, b) in enumerate(pairwise(bounds.tolist())):
            alone, end = ops.short_conv(x[:, a:b], weight, state[n : n + 1])
            assert torch.equal(y[:, a:b], alone)
            assert torch.equal(new[n : n + 1], end)


@pytest.mark.parametrize("case", CASES[::9], ids=str)
def test_nan_comes_through_and_infinities_do_not_hang(case):
    for value in (float("nan"), float("inf")):
        leaves = [x.float() for x in case.inputs]
        leaves[0].view(-1)[0] = value
        with registry.use("cpu"):
            made = case.run(*(x.requires_grad_() for x in leaves))
        made = made[0] if isinstance(made, tuple) else made
        if value != value:
            assert made.isnan().any()
        made.sum().backward()


EMPTY = {
    "short_conv": lambda: ops.short_conv(torch.empty(2, 0, 5), torch.ones(5, 4))[0],
    "rms_norm": lambda: ops.rms_norm(torch.empty(0, 5), torch.ones(5), 1e-5),
    "situ": lambda: ops.situ(torch.empty(0, 5), torch.empty(0, 5)),
    "decay_gate": lambda: ops.decay_gate(torch.empty(0, 3, 4), torch.zeros(3), torch.zeros(3, 4)),
    "attn_res": lambda: ops.attn_res([torch.empty(0, 5), torch.empty(0, 5)], torch.ones(5), torch.ones(5)),
    "route": lambda: ops.route(torch.empty(0, 5), torch.ones(4, 5), torch.zeros(4), 2)[1],
}


@pytest.mark.parametrize("op", EMPTY, ids=str)
def test_no_tokens_give_no_results(op):
    with registry.use("cpu"):
        assert EMPTY[op]().numel() == 0


def test_the_backend_refuses_with_a_reason_and_the_reference_runs():
    with pytest.raises(Exception, match="2 to 4 taps, this one 5"), registry.use("cpu"):
        ops.short_conv(torch.ones(1, 9, 3), torch.ones(3, 5))
    with pytest.raises(Exception, match=r"torch\.float32 alone"), registry.use("cpu"):
        ops.l2norm(torch.ones(3, dtype=torch.float64))
    assert ops.short_conv(torch.ones(1, 9, 3), torch.ones(3, 5))[0].shape == (1, 9, 3)
    assert ops.rms_norm(torch.ones(2, 3), torch.ones(3, dtype=torch.float64), 1e-5).dtype is torch.float64


def operators() -> dict[str, tuple[Callable, tuple]]:
    """Every operator with arguments that show its shapes."""
    native = torch.ops.statewell
    x, w = torch.randn(6, 5), torch.randn(5)
    conv = (torch.randn(2, 4, 3), torch.randn(3, 4), torch.randn(2, 3, 3), torch.tensor([0, 4, 8]))
    gate = (torch.randn(4, 2, 3), torch.randn(2), torch.randn(2, 3))
    shares = [torch.randn(6, 2) for _ in range(3)]
    place = torch.randperm(12).view(6, 2)
    index, kept = torch.randint(0, 4, (6, 2)), torch.rand(6, 2)
    return {
        "norm_forward": (native.norm_forward, (x, w, None, 0.2, 1e-5, False)),
        "norm_backward": (native.norm_backward, (x, w, x, torch.rand(6), x, 0.2, True)),
        "swiglu_forward": (native.swiglu_forward, (x, x)),
        "swiglu_backward": (native.swiglu_backward, (x, x, x)),
        "situ_forward": (native.situ_forward, (x, x, 4.0, 25.0)),
        "situ_backward": (native.situ_backward, (x, x, x, 4.0, 0.0)),
        "gate_forward": (native.gate_forward, (*gate, -5.0)),
        "gate_backward": (native.gate_backward, (*gate, -gate[0].abs(), gate[0], 0.0)),
        "conv_forward": (native.conv_forward, conv),
        "conv_backward": (native.conv_backward, (*conv, conv[0])),
        "depth_forward": (native.depth_forward, ([x, x], w, 1e-5)),
        "depth_backward": (native.depth_backward, ([x, x], w, *shares, x)),
        "route_forward": (native.route_forward, (torch.randn(6, 4), torch.zeros(4), 2, 1.0, True)),
        "route_backward": (native.route_backward, (index, kept, kept, 4, 1.0, True)),
        "expert_order": (native.expert_order, (index, 4)),
        "expert_spread": (native.expert_spread, (x, place.flatten(), place)),
        "expert_gather": (native.expert_gather, (torch.randn(12, 5), place)),
        "expert_combine": (native.expert_combine, (torch.randn(12, 5), kept, place)),
        "expert_combine_backward": (native.expert_combine_backward, (torch.randn(12, 5), kept, place, x)),
    }


@pytest.mark.parametrize("name", operators(), ids=str)
def test_opcheck(name):
    operator, arguments = operators()[name]
    torch.library.opcheck(operator.default, arguments)
