"""Small elementwise pieces: norms, the SwiGLU and SiTU products, the two retention gates. All in at least float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewell.kernels.reference.precision import promoted

# grad * (1 - out^2) and grad * out * (1 - out), in one pass and into a tensor that is already there
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    dtype = promoted(gate, up)
    return (F.silu(gate.to(dtype)) * up.to(dtype)).to(gate.dtype)


def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float | None) -> Tensor:
    """SiTU: both factors are bounded by a tanh, so |out| <= beta * linear_beta."""
    dtype = promoted(gate, up)
    return _SiTU.apply(gate.to(dtype), up.to(dtype), beta, linear_beta).to(gate.dtype)


class _SiTU(torch.autograd.Function):
    """Keeps the three bounded factors only, where plain autograd would keep eight tensors of this size."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, beta: float, linear_beta: float | None) -> Tensor:
        bounded, sigmoid = (gate * (1 / beta)).tanh_(), gate.sigmoid()
        linear = up if linear_beta is None else (up * (1 / linear_beta)).tanh_()
        ctx.save_for_backward(bounded, sigmoid, linear)
        ctx.beta, ctx.linear_beta = beta, linear_beta
        return (bounded * sigmoid).mul_(linear).mul_(beta * (linear_beta or 1.0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        bounded, sigmoid, linear = ctx.saved_tensors
        beta, linear_beta = ctx.beta, ctx.linear_beta
        dup = (bounded * sigmoid).mul_(grads[0]).mul_(beta)  # linear_beta / linear_beta cancels
        if linear_beta is not None:
            _tanh_backward(dup, linear, grad_input=dup)
        dfactor = (grads[0] * linear).mul_(linear_beta or 1.0)
        dgate = dfactor * sigmoid  # beta / beta cancels
        _tanh_backward(dgate, bounded, grad_input=dgate)
        dfactor.mul_(bounded).mul_(beta)
        dgate += _sigmoid_backward(dfactor, sigmoid, grad_input=dfactor)
        return dgate, dup, None, None


def l2norm(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(sum(x^2) + eps): the eps joins the sum, so a zero row stays zero with a finite gradient."""
    return _Normed.apply(x.to(promoted(x)), 1.0, eps).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight * (x * rsqrt(mean(x^2) + eps)), the cast back before the weight as in the released models."""
    return _Normed.apply(x.to(promoted(x)), 1 / x.shape[-1], eps).to(x.dtype) * weight


def gated_rms_norm(
    x: Tensor, weight: Tensor, gate: Tensor, eps: float, activation: Callable[[Tensor], Tensor]
) -> Tensor:
    """Norm first, gate second, one cast at the end."""
    dtype = promoted(x, weight, gate)
    normed = _Normed.apply(x.to(dtype), 1 / x.shape[-1], eps)
    return (normed * weight.to(dtype) * activation(gate.to(dtype))).to(x.dtype)


class _Normed(torch.autograd.Function):
    """n = x * rsqrt(share * sum(x^2) + eps) on the last axis; share is 1 for the l2 norm, 1/D for the RMS."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float, eps: float) -> Tensor:
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        factor = squares.mul_(share).add_(eps).rsqrt_()
        normed = x * factor
        ctx.save_for_backward(normed, factor)
        ctx.share = share
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normed, factor = ctx.saved_tensors
        along = (grads[0] * normed).sum(dim=-1, keepdim=True)
        dx = torch.addcmul(grads[0], normed, along, value=-ctx.share).mul_(factor)
        return dx, None, None


def decay_gate(z: Tensor, A_log: Tensor, dt_bias: Tensor) -> Tensor:
    """g = -exp(A_log) * softplus(z + dt_bias); past 20 softplus is its argument, with gradient 1."""
    dtype = promoted(z, A_log, dt_bias)
    return -_per_head(A_log.to(dtype).exp(), dt_bias) * F.softplus(z.to(dtype) + dt_bias.to(dtype), threshold=20.0)


def bounded_gate(z: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float) -> Tensor:
    """g = lower_bound * sigmoid(exp(A_log) * (z + dt_bias)), kept off both ends under rounding."""
    dtype = promoted(z, A_log, dt_bias)
    g = lower_bound * torch.sigmoid(_per_head(A_log.to(dtype).exp(), dt_bias) * (z.to(dtype) + dt_bias.to(dtype)))
    least = torch.nextafter(torch.tensor(lower_bound, dtype=dtype), torch.tensor(0.0, dtype=dtype)).item()
    # where the clamp acts the sigmoid's own gradient has already rounded to zero
    return g.clamp(min=least, max=-torch.finfo(dtype).tiny)


def _per_head(value: Tensor, dt_bias: Tensor) -> Tensor:
    """[HV] as it broadcasts against dt_bias [HV] or [HV, K]."""
    return value if dt_bias.dim() == 1 else value[:, None]
