"""Attention over kept pages: against the same over one tensor, whatever the pages and whoever shares the call."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from statewell.errors import ShapeError
from statewell.kernels import ops, registry
from statewell.kernels.cpu import binding
from statewell.kernels.pages import Kept, Pages
from tests.tolerances import assert_close

PAGE = 64
HELD = (1, 63, 64, 65, 200, 131)
BACKENDS = ("reference", *(() if binding.native is None else ("cpu",)))


def rows(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def kept(caches: Sequence[Sequence[Tensor]]) -> tuple[Kept, ...]:
    """The tensors [S, ...] of each row, all in the same pages one after the other; unfilled room is NaN."""
    lengths = tuple(len(row[0]) for row in caches)
    widths = [tensor[0].numel() for tensor in caches[0]]
    starts = [PAGE * sum(widths[:n]) for n in range(len(widths))]
    buffers = []
    for row, length in zip(caches, lengths, strict=True):
        pages = [torch.full((PAGE * sum(widths),), float("nan"), dtype=row[0].dtype) for _ in range(-(-length // PAGE))]
        for tensor, start, width in zip(row, starts, widths, strict=True):
            for t, token in enumerate(tensor):
                at = start + t % PAGE * width
                pages[t // PAGE][at : at + width] = token.flatten()
        buffers.append(pages)
    shared = Pages(buffers, lengths, PAGE)
    return tuple(Kept(shared, tuple(t.shape[1:]), at) for t, at in zip(caches[0], starts, strict=True))


def heads(dtype: torch.dtype) -> list[list[Tensor]]:
    return [[rows(S, 2, 24, seed=S, dtype=dtype), rows(S, 2, 9, seed=S + 1, dtype=dtype)] for S in HELD]


def latents(dtype: torch.dtype) -> list[list[Tensor]]:
    return [[rows(S, 33, seed=S, dtype=dtype), rows(S, 5, seed=S + 1, dtype=dtype)] for S in HELD]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lengths", [(1, 1, 1, 1, 1, 1), (1, 5, 1, 65, 70, 1)], ids=["newest", "mixed"])
def test_kept_keys_and_values_read_as_one_tensor_reads(backend: str, lengths: tuple[int, ...]):
    caches, q = heads(torch.float32), rows(1, sum(lengths), 6, 24)
    exact = torch.cat(
        [
            ops.attention(part.double(), k[None].double(), v[None].double())
            for part, (k, v) in zip(q.split(lengths, dim=1), caches, strict=True)
        ],
        dim=1,
    )
    with registry.use(backend):
        assert_close(ops.attention_kept(q, *kept(caches), lengths), exact, "operation")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lengths", [(1, 1, 1, 1, 1, 1), (1, 5, 1, 65, 70, 1)], ids=["newest", "mixed"])
def test_kept_latents_read_as_one_tensor_reads(backend: str, lengths: tuple[int, ...]):
    caches, q, up = latents(torch.float32), rows(1, sum(lengths), 3, 12), 33**-0.5 * rows(3, 15, 33, seed=9)
    exact = torch.cat(
        [
            ops.mla_absorbed(part.double(), latent[None].double(), rope[None].double(), up.double())
            for part, (latent, rope) in zip(q.split(lengths, dim=1), caches, strict=True)
        ],
        dim=1,
    )
    with registry.use(backend):
        assert_close(ops.mla_kept(q, *kept(caches), up, lengths), exact, "operation")


@pytest.mark.parametrize("backend", BACKENDS)
def test_float64_pages_give_the_definition_exactly(backend: str):
    caches, q = heads(torch.float64), rows(1, 6, 6, 24, dtype=torch.float64)
    exact = [ops.attention(q[:, n : n + 1], k[None], v[None]) for n, (k, v) in enumerate(caches)]
    assert torch.equal(ops.attention_kept(q, *kept(caches), (1,) * 6), torch.cat(exact, dim=1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_comes_out_the_same_to_the_bit_alone_or_among_others(backend: str):
    caches, q = heads(torch.float32), rows(1, 6, 6, 24)
    with registry.use(backend):
        together = ops.attention_kept(q, *kept(caches), (1,) * 6)
        for n, cache in enumerate(caches):
            alone = ops.attention_kept(q[:, n : n + 1], *kept([cache]), (1,))
            assert torch.equal(alone, together[:, n : n + 1])


def test_a_page_may_belong_to_two_rows():
    (k, v), q = heads(torch.float32)[4], rows(1, 2, 6, 24)
    whole = kept([(k, v)])
    two = Pages([whole[0].pages.buffers[0]] * 2, (200, 130), PAGE)
    shared = [Kept(two, part.shape, part.at) for part in whole]
    made = ops.attention_kept(q, *shared, (1, 1))
    assert_close(
        made[:, 1:], ops.attention(q[:, 1:].double(), k[None, :130].double(), v[None, :130].double()), "operation"
    )


def test_queries_without_their_own_tokens_are_refused():
    caches = heads(torch.float32)
    with pytest.raises(ShapeError, match="2 queries came with 1 kept tokens"):
        ops.attention_kept(rows(1, 7, 6, 24), *kept(caches), (2, 1, 1, 1, 1, 1))
    with pytest.raises(ShapeError, match="6 queries of 5 rows"):
        ops.attention_kept(rows(1, 6, 6, 24), *kept(caches), (1, 1, 1, 1, 2))
    with pytest.raises(ShapeError, match="k keeps"):
        ops.attention_kept(rows(1, 6, 6, 23), *reversed(kept(latents(torch.float32))), (1,) * 6)
    with pytest.raises(ShapeError, match="hold a multiple of 64"):
        Pages([[torch.zeros(1), torch.zeros(1)]], (3,), 100)
    with pytest.raises(ShapeError, match="129 tokens do not lie in 2 pages of 64"):
        Pages([[torch.zeros(64), torch.zeros(64)]], (129,), PAGE)
