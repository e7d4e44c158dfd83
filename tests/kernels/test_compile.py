"""torch.compile of a training step: one graph, the same loss and gradients."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

import statewell as sw
from statewell.kernels import ops
from statewell.kernels.cpu import binding
from tests.kernels.inputs import DELTA, GATED_DELTA, KDA, LINEAR, Shape
from tests.tolerances import assert_close

pytestmark = [
    pytest.mark.skipif(binding.native is None, reason=f"the cpu kernels are missing: {binding.MISSING}"),
    # the tracer itself makes an instance of every autograd function that it meets
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch._dynamo.reset()


def assert_compiles(loss, leaves, backend):
    """`loss()` compiled gives the loss and gradients of the plain one, in one graph."""
    expected = loss()
    wanted = torch.autograd.grad(expected, leaves)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(loss, backend=counter, fullgraph=True)
    actual = compiled()
    gradients = torch.autograd.grad(actual, leaves)
    assert counter.frame_count == 1
    assert_close(actual, expected, "operation")
    for a, e in zip(gradients, wanted, strict=True):
        assert_close(a, e, "gradient")


@pytest.mark.parametrize("packed", [False, True], ids=["row", "packed"])
@pytest.mark.parametrize("operation", [LINEAR, DELTA, GATED_DELTA, KDA], ids=str)
def test_a_loss_through_a_recurrence_is_one_graph(operation, packed):
    shape = Shape(T=40, H=1, HV=2, K=8, V=8)
    leaves = [x.float().requires_grad_() for x in operation.inputs(shape, beta=1.0)]
    bounds = torch.tensor([0, 5, 40]) if packed else None
    run = getattr(ops, operation.name)
    assert_compiles(lambda: run(*leaves, cu_seqlens=bounds)[0].square().sum(), leaves, "aot_eager")


def assert_model_compiles(config, backend):
    model = sw.build(config, seed=0)
    ids = torch.randint(0, 250, (2, 33), generator=torch.Generator().manual_seed(1))

    def loss():
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    assert_compiles(loss, list(model.parameters()), backend)


def test_a_training_step_of_a_model_is_one_graph():
    config = sw.build("kimi_linear:nano", seed=0).config
    kda_then_mla = config.layers[2:4]
    assert_model_compiles(replace(config, layers=kda_then_mla), "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own, on importing inductor
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_training_step_of_a_whole_model_is_one_graph(backend):
    assert_model_compiles("kimi_linear:nano", backend)
