"""The proof holds for all six, and each claim fails when what it claims is broken."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from statewell import architectures
from statewell.bench import proof, recurrence
from statewell.config.mixers import AttentionSpec, DeltaSpec, GatedDeltaSpec, KDASpec, LinearSpec, MLASpec
from statewell.errors import StatewellError
from statewell.kernels import ops
from statewell.memory.model import ModelMemory
from statewell.models import build
from statewell.models.mixers import registered_mixers
from tests.tolerances import LIMITS


@pytest.fixture(scope="module")
def model():
    """The one architecture that has both a state and a growing cache, MoE and attention residuals."""
    return build(architectures.resolve("kimi_k3:nano"), seed=0, dtype=torch.float64)


@pytest.fixture(scope="module")
def ids(model) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(model.config.vocab, (proof.ROWS, proof.TOKENS), generator=generator)


def claim(name: str) -> proof.Claim:
    return next(each for each in proof.CLAIMS if each.name == name)


@pytest.mark.parametrize("architecture", architectures.ARCHITECTURES)
def test_every_claim_holds(architecture):
    rows = list(proof.prove([architecture]))
    assert [row.name for row in rows] == [each.name for each in proof.CLAIMS]
    assert len(rows) == proof.count([architecture])
    assert [row for row in rows if not row.ok] == []
    assert {row.architecture for row in rows} == {architecture}


def test_the_limits_are_those_of_the_tests():
    assert LIMITS["model", torch.float64] == proof.MODEL_LIMIT
    assert LIMITS["operation", torch.float64] == proof.OPERATION_LIMIT


def test_every_registered_mixer_has_an_operation_to_check():
    assert set(registered_mixers()) <= set(recurrence.distance_of.registry)


class Leaky(torch.nn.Module):
    """A model whose scores hold a trace of all tokens of the pass, later ones included."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.config, self.new_memory = inner, inner.config, inner.new_memory

    def forward(self, ids: Tensor, memory: ModelMemory | None = None) -> Tensor:
        logits = self.inner(ids, memory)
        return logits + 1e-6 * logits.mean(dim=1, keepdim=True)


@pytest.mark.parametrize("name", ["causality", "split_equals_whole"])
def test_a_trace_of_later_tokens_fails_the_claim(model, ids, name):
    row = proof.check(claim(name), Leaky(model), ids)
    assert not row.ok
    assert row.error > row.limit


def test_a_memory_that_keeps_something_else_fails_the_split(model, ids, monkeypatch):
    fill = ModelMemory.snapshot

    def noisy(memory: ModelMemory):
        held = fill(memory)
        name, tensor = next(iter(held.tensors.items()))
        held.tensors[name] = tensor + 1e-6 * torch.randn(tensor.shape, dtype=torch.float64)
        return held

    monkeypatch.setattr(ModelMemory, "snapshot", noisy)
    assert not proof.check(claim("split_equals_whole"), model, ids).ok


@pytest.mark.parametrize("count", ["used", "reserved"])
def test_one_byte_too_many_fails_the_plan(model, ids, monkeypatch, count):
    honest = getattr(ModelMemory, count)
    monkeypatch.setattr(ModelMemory, count, lambda memory: honest(memory) + 1)
    row = proof.check(claim("measured_equals_planned"), model, ids)
    assert not row.ok
    assert row.error == 1


def test_a_fork_that_shares_its_parents_memory_fails(model, ids, monkeypatch):
    monkeypatch.setattr(ModelMemory, "fork", lambda memory: memory)
    assert not proof.check(claim("snapshot_restore_fork"), model, ids).ok


def test_a_restore_that_does_nothing_fails(model, ids, monkeypatch):
    monkeypatch.setattr(ModelMemory, "restore", lambda memory, snapshot: None)
    assert not proof.check(claim("snapshot_restore_fork"), model, ids).ok


@pytest.mark.parametrize(
    ("spec", "op"),
    [
        (AttentionSpec(heads=2, head_dim=8), "attention"),
        (LinearSpec(heads=2, key_dim=8, value_dim=8), "linear"),
        (DeltaSpec(heads=2, key_dim=8, value_dim=8), "delta"),
        (GatedDeltaSpec(heads=2, value_heads=2, key_dim=8, value_dim=8), "gated_delta"),
        (KDASpec(heads=2, key_dim=8, value_dim=8), "kda"),
        (KDASpec(heads=2, key_dim=8, value_dim=8, lower_bound=-5.0), "kda"),
        (MLASpec(heads=2, q_rank=None, kv_rank=8, nope_dim=8, rope_dim=4, value_dim=8), "mla"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_kernel_that_is_a_little_off_fails_its_mixer(monkeypatch, spec, op):
    assert recurrence.distance_of(spec) <= proof.OPERATION_LIMIT
    exact = getattr(ops, op)

    def off(q: Tensor, k: Tensor, *others: Tensor, **named: Tensor):
        # many tokens only: the single ones are the definition
        return exact(q, k * (1 + 1e-9) if q.shape[1] == recurrence.T else k, *others, **named)

    monkeypatch.setattr(ops, op, off)
    assert recurrence.distance_of(spec) > proof.OPERATION_LIMIT


def test_a_refusal_is_a_failed_claim_with_its_reason(model, ids):
    def refuse(model: torch.nn.Module, ids: Tensor) -> float:
        raise StatewellError("no room for 2 rows")

    row = proof.check(proof.Claim(name="x", limit=1.0, measure=refuse), model, ids)
    assert (row.ok, row.error, row.reason) == (False, None, "no room for 2 rows")


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_what_is_no_number_is_a_failed_claim(model, ids, error):
    row = proof.check(proof.Claim(name="x", limit=1.0, measure=lambda model, ids: error), model, ids)
    assert not row.ok
    assert row.error is None
    assert str(error) in row.reason
