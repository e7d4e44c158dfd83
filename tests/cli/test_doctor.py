"""`statewell doctor`: what it says of a computer, of kernels and of a proof, and the exit code."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from statewell.bench import proof
from statewell.bench.machine import Machine
from statewell.bench.proof import Proof
from statewell.cli import doctor as verb
from statewell.kernels import registry
from statewell.kernels.registry import Choice, Refusal

APP = typer.Typer()
APP.command()(verb.doctor)

GOOD = Proof(name="causality", architecture="gpt2", ok=True, error=1e-16, limit=1e-10)
BAD = Proof(name="causality", architecture="kimi_k3", ok=False, error=0.5, limit=1e-10)
UNTRIED = Proof(
    name="causality", architecture="deltanet", ok=False, error=None, limit=1e-10, reason="no room for 2 rows"
)
PLAIN = Machine(
    cpu="Some CPU",
    cores=2,
    total_bytes=16 << 30,
    free_bytes=8 << 30,
    limited_by_group=False,
    instructions=("avx2",),
)


@pytest.fixture
def run(monkeypatch):
    """Run the verb with these rows for a proof; the outcome with stdout and stderr apart."""

    def go(rows: list[Proof], *arguments: str):
        monkeypatch.setattr(proof, "prove", lambda: iter(rows))
        return CliRunner().invoke(APP, list(arguments), catch_exceptions=False)

    return go


def test_a_proof_that_holds_ends_with_0_and_one_document(run):
    outcome = run([GOOD], "--json")
    assert outcome.exit_code == 0
    document = json.loads(outcome.stdout)
    assert document["ok"] is True
    assert document["proof"] == [vars(GOOD)]
    backends = {choice["op"]: choice["backend"] for choice in document["kernels"]}
    assert backends["kda"] in ("cpu", "reference")
    assert document["instruction_sets"] == list(registry.instruction_sets())
    assert document["machine"]["cores"] >= 1


@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["text", "json"])
def test_a_claim_that_fails_ends_with_1_and_everything_is_still_said(run, arguments):
    outcome = run([GOOD, BAD, UNTRIED], *arguments)
    assert outcome.exit_code == 1
    assert "kimi_k3" in outcome.stdout
    assert "no room for 2 rows" in outcome.stdout


def test_a_failed_claim_names_each_architecture_with_its_error():
    assert verb.proof_lines([GOOD, BAD, UNTRIED])[1:] == [
        "  FAILED causality: 1 of 3 architectures",
        "         kimi_k3: error 0.5, at most 1e-10 is allowed",
        "         deltanet: no room for 2 rows",
    ]


def test_a_claim_that_allows_no_error_says_exact():
    exact = Proof(name="fork", architecture="gpt2", ok=True, error=0.0, limit=0)
    assert verb.proof_lines([exact])[1:] == ["  ok     fork: 1 of 1 architectures, exact"]
    apart = Proof(name="fork", architecture="gpt2", ok=False, error=3.0, limit=0)
    assert verb.proof_lines([apart])[2:] == ["         gpt2: error 3, none is allowed"]


def test_a_claim_that_holds_is_one_line():
    assert verb.proof_lines([GOOD])[1:] == [
        "  ok     causality: 1 of 1 architectures, largest error 1e-16 of 1e-10 allowed"
    ]


def test_a_cpu_without_bf16_instructions_is_told_in_a_sentence():
    assert verb.BF16_SENTENCE in verb.describe(PLAIN, threads=1)
    with_bf16 = Machine(**{**vars(PLAIN), "instructions": ("avx512_bf16",)})
    assert verb.BF16_SENTENCE not in verb.describe(with_bf16, threads=1)


def test_memory_is_said_with_its_limit_or_as_unknown():
    assert "memory: 8.0 GiB free of 16.0 GiB" in verb.describe(PLAIN, threads=1)
    limited = Machine(**{**vars(PLAIN), "limited_by_group": True})
    assert any("limited by this process's control group" in line for line in verb.describe(limited, threads=1))
    unknown = Machine(**{**vars(PLAIN), "free_bytes": None})
    assert "memory: unknown" in "\n".join(verb.describe(unknown, threads=1))


def test_kernels_are_grouped_by_backend_and_every_refusal_has_its_reason():
    refusal = Refusal("cpu", "float64 is not compiled in")
    choices = (
        Choice("kda", "reference", (refusal,)),
        Choice("delta", "reference", (refusal,)),
        Choice("mla", "cpu", ()),
    )
    assert verb.kernel_lines(choices) == [
        "kernels: reference runs kda, delta",
        "kernels: cpu runs mla",
        "kernels: cpu refused kda, delta: float64 is not compiled in",
    ]


def test_the_instruction_set_in_use_is_named_before_the_others():
    assert verb.compiled_lines(()) == []
    assert verb.compiled_lines(("scalar",)) == ["kernels: cpu computes with scalar"]
    assert verb.compiled_lines(("avx2", "scalar")) == ["kernels: cpu computes with avx2, scalar could"]
