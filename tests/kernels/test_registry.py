"""Choosing a backend: order, refusals with reasons, logged once, forced by name, explained."""

import logging

import pytest
import torch

from statewell.errors import RequestError
from statewell.kernels import ops, registry
from statewell.kernels.reference import OPS
from statewell.kernels.registry import Backend, Call, Refusal

CALL = Call("cpu", torch.float32, (8, 8), False)


def accept(op, call):
    return None


def fast(name="cpu", supports=accept, covered=("l2norm",)):
    return Backend(name=name, ops={op: lambda x, eps, op=op: f"{name} {op}" for op in covered}, supports=supports)


@pytest.fixture
def with_cpu(monkeypatch):
    """An installation with a `cpu` backend that runs l2norm, but only in float32, and situ never."""

    def supports(op, call):
        if op == "situ":
            return "its situ has no gradient yet"
        return None if call.dtype is torch.float32 else f"{call.dtype} is not float32"

    reference = registry.backends()[-1]
    known = (fast(supports=supports, covered=("l2norm", "situ")), reference)
    monkeypatch.setattr(registry, "backends", lambda: known)
    registry._resolve.cache_clear()
    registry._log_refusal.cache_clear()
    yield
    registry._resolve.cache_clear()
    registry._log_refusal.cache_clear()


def test_the_first_backend_without_a_reason_is_taken_and_refusals_are_kept():
    refuses = fast("gpu", supports=lambda op, call: f"there is no {call.device} in it")
    choice = registry.choose([refuses, fast("cpu", covered=("situ",)), fast("reference")], "l2norm", CALL)
    assert choice.backend == "reference"
    assert choice.refusals == (Refusal("gpu", "there is no cpu in it"), Refusal("cpu", "it has no l2norm"))


def test_when_none_accepts_every_reason_is_told():
    refuses = fast("gpu", supports=lambda op, call: "its device is absent")
    with pytest.raises(RequestError, match=r"no kernel runs l2norm .*gpu: its device is absent; cpu: it has no l2norm"):
        registry.choose([refuses, fast("cpu", covered=())], "l2norm", CALL)


def test_backends_stand_in_the_documented_order():
    assert registry.ORDER == ("gpu", "cpu", "reference")
    names = [backend.name for backend in registry.backends()]
    assert names == sorted(names, key=registry.ORDER.index)
    assert names[-1] == "reference"


def test_the_reference_runs_every_operation():
    with registry.use("reference"):
        choices = registry.explain()
    for choice in choices:
        assert choice.backend == "reference"
        assert choice.refusals == ()
    assert {choice.op for choice in choices} == set(OPS)


def test_a_faster_backend_is_used_where_it_accepts_and_the_reference_elsewhere(with_cpu):
    x = torch.ones(2, 3)
    assert ops.l2norm(x) == "cpu l2norm"
    assert torch.is_tensor(ops.l2norm(x.double()))
    assert torch.is_tensor(ops.rms_norm(x, torch.ones(3), 1e-5))


def test_a_refusal_is_logged_once_with_its_reason(with_cpu, caplog):
    x = torch.ones(2, 3, dtype=torch.float64)
    with caplog.at_level(logging.INFO, logger="statewell.kernels.registry"):
        for width in (3, 4, 3):
            ops.l2norm(torch.ones(2, width, dtype=torch.float64))
        ops.l2norm(x.requires_grad_())
    assert [record.getMessage() for record in caplog.records] == [
        "l2norm runs on reference: cpu refused, torch.float64 is not float32"
    ]


def test_use_forces_a_backend_and_gives_the_choice_back(with_cpu):
    x = torch.ones(2, 3)
    with registry.use("reference"):
        assert torch.is_tensor(ops.l2norm(x))
        with registry.use("cpu"):
            assert ops.l2norm(x) == "cpu l2norm"
            with pytest.raises(RequestError, match="cpu: it has no rms_norm"):
                ops.rms_norm(x, torch.ones(3), 1e-5)
        assert torch.is_tensor(ops.l2norm(x))
    assert ops.l2norm(x) == "cpu l2norm"


def test_an_unknown_backend_is_refused_with_the_nearest_name():
    with (
        pytest.raises(RequestError, match=r"no kernel backend 'refrence' here; did you mean 'reference'"),
        registry.use("refrence"),
    ):
        pass


def test_explain_gives_every_refusal_of_every_operation(with_cpu):
    told = {choice.op: choice for choice in registry.explain(dtype=torch.float64)}
    assert told["l2norm"] == ("l2norm", "reference", (("cpu", "torch.float64 is not float32"),))
    assert told["situ"].refusals == (Refusal("cpu", "its situ has no gradient yet"),)
    assert told["kda"].refusals == (Refusal("cpu", "it has no kda"),)
    assert {choice.op: choice.backend for choice in registry.explain()}["l2norm"] == "cpu"


def test_the_choice_is_never_asked_about_lengths(monkeypatch):
    asked = []
    resolve = registry.resolve
    monkeypatch.setattr(ops, "resolve", lambda op, call: asked.append((op, call)) or resolve(op, call))
    for T in (1, 7, 64):
        x = torch.ones(1, T, 2, 4)
        ops.delta(x, x, x, torch.ones(1, T, 2))
        ops.attention(x, x, x)
        ops.short_conv(x[:, :, 0], torch.ones(4, 4))
    assert len(set(asked)) == 3
    with torch.no_grad():
        ops.l2norm(torch.ones(3, requires_grad=True))
    ops.l2norm(torch.ones(3, requires_grad=True))
    assert [call.grad for _, call in asked[-2:]] == [False, True]
