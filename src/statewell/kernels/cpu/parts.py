"""SwiGLU, SiTU and the two retention gates, forward and backward. Formulas: csrc/parts.h."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewell.kernels.cpu.binding import address, compiled, instruction_set, needs_operator, threads
from statewell.kernels.cpu.library import operator

UNBOUNDED = 0.0  # no linear_beta, or no lower_bound


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """As the reference, in float32; keeps its two inputs alone."""
    return _SwiGLU.apply(gate, up) if needs_operator(gate, up) else _run_swiglu_forward(gate, up)


def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float | None) -> Tensor:
    """As the reference, in float32; keeps its two inputs alone."""
    bounds = (beta, UNBOUNDED if linear_beta is None else linear_beta)
    return _SiTU.apply(gate, up, *bounds) if needs_operator(gate, up) else _run_situ_forward(gate, up, *bounds)


def decay_gate(z: Tensor, A_log: Tensor, dt_bias: Tensor) -> Tensor:
    """As the reference, in float32."""
    return _gate(z, A_log, dt_bias, UNBOUNDED)


def bounded_gate(z: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float) -> Tensor:
    """As the reference, in float32."""
    return _gate(z, A_log, dt_bias, lower_bound)


def _run_swiglu_forward(gate: Tensor, up: Tensor) -> Tensor:
    out = gate.new_empty(gate.shape)
    gate, up = gate.contiguous(), up.contiguous()
    compiled().swiglu_forward(instruction_set(), threads(), address(gate), address(up), address(out), out.numel())
    return out


def _run_swiglu_backward(gate: Tensor, up: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    dgate, dup = gate.new_empty(gate.shape), gate.new_empty(gate.shape)
    gate, up, dout = gate.contiguous(), up.contiguous(), dout.contiguous()
    compiled().swiglu_backward(
        instruction_set(),
        threads(),
        address(gate),
        address(up),
        address(dout),
        address(dgate),
        address(dup),
        dup.numel(),
    )
    return dgate, dup


_swiglu_forward = operator(
    "swiglu_forward(Tensor gate, Tensor up) -> Tensor",
    _run_swiglu_forward,
    lambda gate, up: gate.new_empty(gate.shape),
)
_swiglu_backward = operator(
    "swiglu_backward(Tensor gate, Tensor up, Tensor dout) -> (Tensor, Tensor)",
    _run_swiglu_backward,
    lambda gate, up, dout: (gate.new_empty(gate.shape), gate.new_empty(gate.shape)),
)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return _swiglu_forward(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _swiglu_backward(*ctx.saved_tensors, grads[0])


def _run_situ_forward(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    out = gate.new_empty(gate.shape)
    gate, up = gate.contiguous(), up.contiguous()
    compiled().situ_forward(
        instruction_set(), threads(), address(gate), address(up), address(out), out.numel(), beta, linear_beta
    )
    return out


def _run_situ_backward(
    gate: Tensor, up: Tensor, dout: Tensor, beta: float, linear_beta: float
) -> tuple[Tensor, Tensor]:
    dgate, dup = gate.new_empty(gate.shape), gate.new_empty(gate.shape)
    gate, up, dout = gate.contiguous(), up.contiguous(), dout.contiguous()
    compiled().situ_backward(
        instruction_set(),
        threads(),
        address(gate),
        address(up),
        address(dout),
        address(dgate),
        address(dup),
        dup.numel(),
        beta,
        linear_beta,
    )
    return dgate, dup


_situ_forward = operator(
    "situ_forward(Tensor gate, Tensor up, float beta, float linear_beta) -> Tensor",
    _run_situ_forward,
    lambda gate, up, beta, linear_beta: gate.new_empty(gate.shape),
)
_situ_backward = operator(
    "situ_backward(Tensor gate, Tensor up, Tensor dout, float beta, float linear_beta) -> (Tensor, Tensor)",
    _run_situ_backward,
    lambda gate, up, dout, beta, linear_beta: (gate.new_empty(gate.shape), gate.new_empty(gate.shape)),
)


class _SiTU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.bounds = (beta, linear_beta)
        return _situ_forward(gate, up, beta, linear_beta)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_situ_backward(*ctx.saved_tensors, grads[0], *ctx.bounds), None, None


def _gate(z: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float) -> Tensor:
    run = _Gate.apply if needs_operator(z, A_log, dt_bias) else _run_gate_forward
    return run(z, A_log, dt_bias, lower_bound)


def _widths(dt_bias: Tensor) -> tuple[int, int]:
    """HV and K of a gate; one number per head is K = 1."""
    return dt_bias.shape[0], 1 if dt_bias.dim() == 1 else dt_bias.shape[1]


def _run_gate_forward(z: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float) -> Tensor:
    g = z.new_empty(z.shape)
    z, A_log, dt_bias = z.contiguous(), A_log.contiguous(), dt_bias.contiguous()
    HV, K = _widths(dt_bias)
    compiled().gate_forward(
        instruction_set(),
        threads(),
        address(z),
        address(A_log),
        address(dt_bias),
        address(g),
        g.numel() // max(1, HV * K),
        HV,
        K,
        lower_bound,
    )
    return g


def _run_gate_backward(
    z: Tensor, A_log: Tensor, dt_bias: Tensor, g: Tensor, dg: Tensor, lower_bound: float
) -> tuple[Tensor, Tensor, Tensor]:
    dz, dA_log, ddt_bias = _shapes_gate_backward(z, A_log, dt_bias, g, dg, lower_bound)
    z, A_log, dt_bias, dg = z.contiguous(), A_log.contiguous(), dt_bias.contiguous(), dg.contiguous()
    HV, K = _widths(dt_bias)
    compiled().gate_backward(
        instruction_set(),
        threads(),
        address(z),
        address(A_log),
        address(dt_bias),
        address(g),
        address(dg),
        address(dz),
        address(dA_log),
        address(ddt_bias),
        g.numel() // max(1, HV * K),
        HV,
        K,
        lower_bound,
    )
    return dz, dA_log, ddt_bias


def _shapes_gate_backward(
    z: Tensor, A_log: Tensor, dt_bias: Tensor, g: Tensor, dg: Tensor, lower_bound: float
) -> tuple[Tensor, Tensor, Tensor]:
    return z.new_empty(z.shape), z.new_empty(A_log.shape), z.new_empty(dt_bias.shape)


_gate_forward = operator(
    "gate_forward(Tensor z, Tensor A_log, Tensor dt_bias, float lower_bound) -> Tensor",
    _run_gate_forward,
    lambda z, A_log, dt_bias, lower_bound: z.new_empty(z.shape),
)
_gate_backward = operator(
    "gate_backward(Tensor z, Tensor A_log, Tensor dt_bias, Tensor g, Tensor dg, float lower_bound)"
    " -> (Tensor, Tensor, Tensor)",
    _run_gate_backward,
    _shapes_gate_backward,
)


class _Gate(torch.autograd.Function):
    """z [..., HV] or [..., HV, K]; keeps its result, which the recurrence keeps too, and no other."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float) -> Tensor:
        g = _gate_forward(z, A_log, dt_bias, lower_bound)
        ctx.save_for_backward(z, A_log, dt_bias, g)
        ctx.lower_bound = lower_bound
        return g

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *_gate_backward(*ctx.saved_tensors, grads[0], ctx.lower_bound), None
