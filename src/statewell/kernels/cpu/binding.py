"""The compiled module `_native`: whether it is here, which instruction set runs, and how tensors are handed to it.

It takes addresses, sizes and strides, never tensors, and checks nothing: shapes come checked from kernels/ops.py.
Everything above this file sees tensors; everything below sees integers.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

import torch
from torch import Tensor

from statewell.errors import RequestError, nearest

MISSING = (
    "its compiled module is not installed, so the recurrent operations run 4 to 30 times slower; "
    "install a C++17 compiler (g++ or clang++) and run pip install again"
)


def _load() -> ModuleType | None:
    """The compiled module, or None where the install had no compiler; one that is there but broken raises."""
    name = f"{__package__}._native"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


native = _load()


def compiled() -> ModuleType:
    """The compiled module, by those that were resolved because it is here."""
    if native is None:
        raise RequestError(f"the cpu kernels cannot run: {MISSING}.")
    return native


def instruction_sets() -> tuple[str, ...]:
    """The instruction sets that were compiled and run on this processor, fastest first."""
    if native is None:
        return ()
    return tuple(name for i, name in enumerate(native.instruction_sets()) if native.runs_here(i))


_forced: ContextVar[int | None] = ContextVar("statewell_forced_instruction_set", default=None)


def _place(name: str) -> int:
    return compiled().instruction_sets().index(name)


_default = _place(instruction_sets()[0]) if native is not None else -1


def instruction_set() -> int:
    """The place of the instruction set that runs now, the first argument of every compiled function."""
    forced = _forced.get()
    return _default if forced is None else forced


@contextmanager
def use_instruction_set(name: str) -> Iterator[None]:
    """Run every compiled kernel inside the `with` on one of `instruction_sets()`; raises RequestError otherwise."""
    here = instruction_sets()
    if name not in here:
        raise RequestError(f"this processor and build have no instruction set '{name}'; {nearest(name, here)}")
    token = _forced.set(_place(name))
    try:
        yield
    finally:
        _forced.reset(token)


def address(tensor: Tensor | None) -> int:
    """Where the tensor's first element lies; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def threads() -> int:
    """As many as torch uses."""
    return torch.get_num_threads()


def needs_operator(*tensors: Tensor | None) -> bool:
    """Whether the call must be one that autograd and torch.compile can see."""
    if torch.compiler.is_compiling():
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def segment_bounds(q: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The segments' first tokens and the last one's end, int64 [N+1], in the tokens of q [B, T, ...] row after row."""
    B, T = q.shape[:2]
    return torch.arange(B + 1) * T if cu_seqlens is None else cu_seqlens.to(torch.int64).contiguous()


def summed(parts: Tensor) -> Tensor:
    """The sum over the first axis."""
    return parts.sum(0) if parts.shape[0] > 1 else parts.squeeze(0)


def laid_out(x: Tensor, axes: int) -> tuple[Tensor, int]:
    """x with its last `axes` axes next to each other and one step between tokens; the step, in elements.

    The leading axes are tokens: [B, T], or [N]. A view that is laid out already, such as a slice of a wider
    projection, is taken as it is.
    """
    if x.is_contiguous():
        # one leading axis: its stride; quick, because a decode step asks for every input
        return x, x.stride(0) if x.dim() == axes + 1 else _numel(x.shape[-axes:])
    shape, strides = x.shape, x.stride()
    packed = strides[-1] == 1 and (axes == 1 or strides[-2] == shape[-1])
    if packed and (x.dim() == axes + 1 or shape[0] == 1):
        return x, strides[-axes - 1]
    if packed and strides[0] == shape[1] * strides[1]:
        return x, strides[1]
    return x.contiguous(), _numel(shape[-axes:])


def _numel(shape: torch.Size) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
