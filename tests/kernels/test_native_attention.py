"""One compiled query over a cache, by head and absorbed: against the float64 definition on odd shapes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from statewell.kernels import ops, registry
from statewell.kernels.cpu import binding
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(binding.native is None, reason=f"the cpu kernels cannot run: {binding.MISSING}")

TOKENS = (1, 3, 4, 63, 64, 65, 257, 1000, 9000)
# B, H, Hk, K, V
HEADS = ((1, 1, 1, 1, 1), (2, 3, 3, 16, 16), (1, 6, 2, 64, 33), (3, 4, 1, 7, 40), (1, 5, 1, 24, 24))
# B, H, Kn, P, V, R
LATENTS = ((1, 1, 1, 1, 1, 1), (2, 4, 8, 4, 8, 32), (1, 3, 17, 5, 9, 70))


@pytest.fixture(params=binding.instruction_sets(), autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every compiled instruction set this processor runs; fresh memory is NaN, so what is not written shows."""
    torch.use_deterministic_algorithms(True)
    with binding.use_instruction_set(request.param):
        yield request.param
    torch.use_deterministic_algorithms(False)


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads(S: int, B: int, H: int, Hk: int, K: int, V: int) -> list[Tensor]:
    return [rows(B, 1, H, K), rows(B, S, Hk, K, seed=1), rows(B, S, Hk, V, seed=2)]


def latents(S: int, B: int, H: int, Kn: int, P: int, V: int, R: int) -> list[Tensor]:
    return [rows(B, 1, H, Kn + P), rows(B, S, R, seed=1), rows(B, S, P, seed=2), R**-0.5 * rows(H, Kn + V, R, seed=3)]


CALLS = [(ops.attention, heads(S, *shape)) for S in TOKENS for shape in HEADS]
CALLS += [(ops.mla_absorbed, latents(S, *shape)) for S in TOKENS for shape in LATENTS]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0].__name__} {tuple(call[1][1].shape)}")
def test_one_query_equals_the_float64_definition_on_any_threads(call):
    run, inputs = call
    with registry.use("reference"):
        exact = run(*(x.double() for x in inputs))
    threads, made = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        with registry.use("cpu"):
            made.append(run(*inputs))
    torch.set_num_threads(threads)
    assert_close(made[0], exact, "operation")
    assert torch.equal(*made) or run is ops.mla_absorbed  # torch's own products may split their sums


def test_a_cache_is_read_in_place_and_one_of_other_strides_is_read_right():
    q, k, v = heads(70, 2, 4, 2, 16, 16)
    with registry.use("cpu"):
        expected = ops.attention(q, k, v)
        wide = torch.cat([k, v], dim=2)
        assert torch.equal(ops.attention(q, wide[:, :, :2], wide[:, :, 2:]), expected)
        room = torch.full((2, 100, 2, 16), float("nan"))
        room[:, :70] = k
        assert torch.equal(ops.attention(q, room[:, :70], v), expected)
        assert torch.equal(ops.attention(q, k.transpose(1, 2).contiguous().transpose(1, 2), v), expected)


def test_large_scores_do_not_overflow_and_a_late_largest_one_wins():
    q, k = torch.ones(1, 1, 1, 8), torch.zeros(1, 700, 1, 8)
    k[0, 699] = 1000.0
    v = torch.arange(700.0)[None, :, None, None].expand(1, 700, 1, 8)
    with registry.use("cpu"):
        assert torch.equal(ops.attention(q, k, v), torch.full((1, 1, 1, 8), 699.0))


def test_nan_in_the_cache_comes_through():
    q, k, v = heads(300, 1, 2, 2, 8, 8)
    k[0, 5, 1, 3] = float("nan")
    with registry.use("cpu"):
        o = ops.attention(q, k, v)
    assert o[0, 0, 1].isnan().all()
    assert o[0, 0, 0].isfinite().all()


def test_a_gradient_and_more_queries_are_taken_as_the_reference_takes_them():
    for T in (1, 5):
        q, k, v = rows(1, T, 2, 8).requires_grad_(), rows(1, 9, 2, 8, seed=1), rows(1, 9, 2, 8, seed=2)
        made = []
        for backend in ("cpu", "reference"):
            with registry.use(backend):
                made.append(torch.autograd.grad(ops.attention(q, k, v).sum(), q)[0])
        assert torch.equal(*made)
