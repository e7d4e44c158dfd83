"""The kernel of a step that changes kept rows in place, once it is checked; what shapes decide is asked once.

A decode step makes this call once per layer and token, always on tensors of the same shapes: what follows from those is
remembered. Values and addresses are looked at in every call. Start at `kernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from statewell.errors import ShapeError
from statewell.kernels import checks
from statewell.kernels.registry import Call, resolve

MOST_KINDS = 4096  # every number of rows is one; forgotten all at once


class Kind(NamedTuple):
    """What is known of calls whose tensors have the same shapes, strides, dtypes and devices.

    spans: bytes from the first number of each tensor past its last, the inputs' first.
    """

    free: Call
    with_gradient: Call
    spans: tuple[int, ...]


_kinds: dict[tuple, Kind] = {}


def kernel(
    op: str,
    inputs: dict[str, Tensor],
    states: dict[str, Tensor],
    rows: Tensor | None,
    check: Callable[[], tuple[int, ...]],
) -> Callable:
    """The backend's function for one token [N, ...] of each of `rows` of `states` [M, ...].

    check: raises for shapes, dtypes or devices that do not fit, else gives the widths of one token.
    Raises: ShapeError, also for a state that overlaps an input or asks for a gradient, and for rows named twice.
    """
    tensors = (*inputs.values(), *states.values())
    # not a generator, and no call between: this runs once a layer and token
    kind = (op, *[(x.shape, x.stride(), x.dtype, x.device) for x in tensors])
    known = _kinds.get(kind)
    if known is None:
        if len(_kinds) >= MOST_KINDS:
            _kinds.clear()
        known = _kinds[kind] = _kind(op, tensors, check())
    _apart(op, inputs, states, known.spans)
    checks.named_once(op, rows, tensors[0].shape[0], tensors[len(inputs)])
    grad = False
    for x in inputs.values():
        grad = grad or x.requires_grad
    return resolve(op, known.with_gradient if grad and torch.is_grad_enabled() else known.free)


def _kind(op: str, tensors: tuple[Tensor, ...], dims: tuple[int, ...]) -> Kind:
    first = tensors[0]
    mixed = any(x.dtype is not first.dtype for x in tensors)
    free, with_gradient = (Call(first.device.type, first.dtype, dims, grad, mixed) for grad in (False, True))
    return Kind(free, with_gradient, tuple(_span(x) for x in tensors))


def _span(tensor: Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _apart(op: str, inputs: dict[str, Tensor], states: dict[str, Tensor], spans: tuple[int, ...]) -> None:
    """No state lies in memory of an input, and none has a graph."""
    begins = [x.data_ptr() for x in inputs.values()]
    for (name, state), length in zip(states.items(), spans[len(begins) :], strict=True):
        if state.requires_grad:
            raise ShapeError(f"{op}: {name} asks for a gradient, a state changed in place has none; detach it.")
        begin = state.data_ptr()
        end = begin + length
        for place, first in enumerate(begins):
            if first < end and begin < first + spans[place]:
                other = list(inputs)[place]
                raise ShapeError(f"{op}: {other} lies in {name}, which is changed in place; pass a copy of {other}.")
