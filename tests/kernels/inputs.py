"""The recurrent operations under one signature, and inputs for them, shared by the tests of both forms and the laws."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from statewell.kernels.reference import chunkwise, chunkwise_linear, recurrent

GOLDEN = Path(__file__).parents[1] / "golden" / "ops"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one call; cu: the bounds of packed segments, for which B is 1."""

    B: int = 1
    T: int = 70
    H: int = 1
    HV: int = 1
    K: int = 8
    V: int = 8
    cu: tuple[int, ...] | None = None

    @property
    def segments(self) -> int:
        return self.B if self.cu is None else len(self.cu) - 1

    def cu_seqlens(self) -> Tensor | None:
        return None if self.cu is None else torch.tensor(self.cu, dtype=torch.int32)

    def __str__(self) -> str:
        return f"B{self.B}T{self.T}H{self.H}HV{self.HV}K{self.K}V{self.V}" + ("packed" if self.cu else "")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation and its forms, called alike: tensors in, (o, *states) out. gate: last axes of g, None without."""

    name: str
    recurrent: Callable
    chunk: Callable
    step: Callable
    gate: str | None = None
    normalize: bool | None = None  # None: not linear attention

    def __str__(self) -> str:
        return self.name if self.normalize is None else f"{self.name}-{'normalised' if self.normalize else 'plain'}"

    def inputs(self, shape: Shape, seed: int = 0, beta: float = 2.0, decay: float = 1.0) -> list[Tensor]:
        """q, k, v, then g in (-decay, 0) and beta in (0, beta) where the operation has them; float64."""
        draw = torch.Generator().manual_seed(seed)
        B, T, H, HV, K, V = shape.B, shape.T, shape.H, shape.HV, shape.K, shape.V
        q, k = (torch.randn(B, T, H, K, generator=draw, dtype=torch.float64) for _ in range(2))
        v = torch.randn(B, T, HV, V, generator=draw, dtype=torch.float64)
        if self.normalize is not None:
            return [F.elu(q) + 1, F.elu(k) + 1, v]
        g_shape = (B, T, HV) if self.gate == "head" else (B, T, HV, K)
        g = -decay * torch.rand(*g_shape, generator=draw, dtype=torch.float64)
        rate = beta * torch.rand(B, T, HV, generator=draw, dtype=torch.float64)
        gates = [rate] if self.gate is None else [g, rate]
        return [F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, *gates]

    def states(self, shape: Shape, seed: int = 1) -> list[Tensor]:
        draw = torch.Generator().manual_seed(seed)
        S = torch.randn(shape.segments, shape.HV, shape.K, shape.V, generator=draw, dtype=torch.float64)
        return [S, S[..., 0].abs() + 1] if self.normalize else [S]

    def run(
        self,
        form: Callable,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor] | None = None,
        cu_seqlens: Tensor | None = None,
        scale: float = 0.3,
    ) -> tuple[Tensor, ...]:
        """(o, S) or (o, S, z) of `form`, one of `recurrent` and `chunk`."""
        state = None if states is None else tuple(states) if self.normalize else states[0]
        if self.normalize is None:
            o, final = form(*inputs, scale, state, cu_seqlens)
        else:
            o, final = form(*inputs, scale, state, self.normalize, cu_seqlens)
        return (o, *final) if self.normalize else (o, final)

    def run_step(self, inputs: Sequence[Tensor], states: Sequence[Tensor], scale: float = 0.3) -> tuple[Tensor, ...]:
        state = tuple(states) if self.normalize else states[0]
        if self.normalize is None:
            o, new = self.step(*inputs, scale, state)
        else:
            o, new = self.step(*inputs, scale, state, self.normalize)
        return (o, *new) if self.normalize else (o, new)


LINEAR = Operation(
    name="linear",
    recurrent=recurrent.linear_recurrent,
    chunk=chunkwise_linear.linear_chunk,
    step=recurrent.linear_step,
    normalize=True,
)
LINEAR_PLAIN = Operation(
    name="linear", recurrent=LINEAR.recurrent, chunk=LINEAR.chunk, step=LINEAR.step, normalize=False
)
DELTA = Operation(
    name="delta", recurrent=recurrent.delta_recurrent, chunk=chunkwise.delta_chunk, step=recurrent.delta_step
)
GATED_DELTA = Operation(
    name="gated_delta",
    recurrent=recurrent.gated_delta_recurrent,
    chunk=chunkwise.gated_delta_chunk,
    step=recurrent.gated_delta_step,
    gate="head",
)
KDA = Operation(
    name="kda",
    recurrent=recurrent.kda_recurrent,
    chunk=chunkwise.kda_chunk,
    step=recurrent.kda_step,
    gate="channel",
)
OPERATIONS = (LINEAR, LINEAR_PLAIN, DELTA, GATED_DELTA, KDA)
FORMS = ("recurrent", "chunk")


def normal(*like: Tensor, seed: int = 9) -> list[Tensor]:
    """Standard normal tensors shaped like the given ones, for example the weights of a loss."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(x.shape, generator=draw, dtype=torch.float64).to(x.dtype) for x in like]


def with_gradients(
    operation: Operation,
    form: str,
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    cu_seqlens: Tensor | None = None,
    scale: float = 0.3,
    weights: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """o, final states, and the gradients of every input and initial state of the loss sum(weights * results)."""
    leaves = [x.clone().requires_grad_() for x in (*inputs, *states)]
    results = operation.run(getattr(operation, form), leaves[: len(inputs)], leaves[len(inputs) :], cu_seqlens, scale)
    weights = normal(*results) if weights is None else [w.to(r.dtype) for w, r in zip(weights, results, strict=True)]
    loss = torch.stack([(w * result).sum() for w, result in zip(weights, results, strict=True)]).sum()
    return [result.detach() for result in results] + list(torch.autograd.grad(loss, leaves))


def golden_cases(name: str) -> list[str]:
    """The cases of golden/ops for one operation."""
    return list(json.loads((GOLDEN / "config.json").read_text())[name])


@dataclass(frozen=True, kw_only=True)
class GoldenCase:
    """One case: what goes in, and by name what must come out."""

    operation: Operation
    inputs: list[Tensor]
    states: list[Tensor]
    cu_seqlens: Tensor | None
    scale: float
    weights: list[Tensor]
    expected: dict[str, Tensor]


def golden_case(name: str, case: str, dtype: torch.dtype) -> GoldenCase:
    """The tensors of a case in `dtype`; expected results stay float64."""
    config = json.loads((GOLDEN / "config.json").read_text())[name][case]
    stored = load_file(GOLDEN / f"{name}.safetensors")
    tensors = {key.split("/")[1]: x for key, x in stored.items() if key.split("/")[0] == case}
    of_name = {"linear": LINEAR if config.get("norm") else LINEAR_PLAIN}
    operation = {**of_name, "delta": DELTA, "gated_delta": GATED_DELTA, "kda": KDA}[name]
    names = ["q", "k", "v", *(["g"] if operation.gate else []), *([] if name == "linear" else ["beta"])]
    inputs = [tensors[x].to(dtype) for x in names]
    # fla keeps z as [N, 1, H, K]
    stored_states = {"initial_state": tensors.get("initial_state"), "initial_z": tensors.get("initial_z")}
    final = tensors["final_state"]
    zeros = [torch.zeros(final.shape), torch.zeros(final.shape[:3])]
    states = [
        zero.to(dtype) if given is None else given.to(dtype).view(zero.shape)
        for zero, given in zip(zeros, stored_states.values(), strict=True)
    ][: 2 if operation.normalize else 1]
    expected = {"out": tensors["out"], "final_state": final}
    weights = [tensors["do"], tensors["dfinal_state"]]
    if operation.normalize:
        expected["final_z"] = tensors["final_z"].view(zeros[1].shape)
        weights.append(zeros[1])
    expected |= {f"d_{x}": tensors[f"d_{x}"] for x in names}
    expected |= {
        f"d_{x}": tensors[f"d_{x}"].view(zero.shape)
        for x, zero in zip(stored_states, zeros, strict=True)
        if stored_states[x] is not None
    }
    return GoldenCase(
        operation=operation,
        inputs=inputs,
        states=states,
        cu_seqlens=tensors.get("cu_seqlens"),
        scale=config["scale"],
        weights=weights,
        expected=expected,
    )


GOLDEN_CASES = [(name, case) for name in ("kda", "gated_delta", "delta", "linear") for case in golden_cases(name)]


def check_golden(name: str, case: str, form: str, dtype: torch.dtype, limit: float) -> None:
    """Outputs, final states and gradients of a form within `limit` of a golden case, absolutely.

    In float32 relative to the largest entry where that is over 1: z, for one, sums 48 keys.
    """
    golden = golden_case(name, case, dtype)
    results = with_gradients(
        golden.operation, form, golden.inputs, golden.states, golden.cu_seqlens, golden.scale, golden.weights
    )
    for (key, expected), result in zip(golden.expected.items(), results, strict=False):
        error = (result.double() - expected).abs().max().item()
        size = 1.0 if dtype == torch.float64 else max(1.0, expected.abs().max().item())
        assert error <= limit * size, f"{key} of {name}/{case} is {error:.1e} off"
