"""Which backend runs an operation: chosen once per kind of call, visible, forceable.

A backend covers any subset of the operations; the first in ORDER that has no reason to refuse is taken.
Nothing here knows what an operation computes. Start at `resolve`; `explain` is what `statewell doctor`
prints.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import torch

from statewell.errors import RequestError, nearest
from statewell.kernels import cpu, reference

logger = logging.getLogger(__name__)

ORDER = ("gpu", "cpu", "reference")  # fastest first; `reference` covers everything and refuses nothing


class Call(NamedTuple):
    """What a backend may decide on: never a length or a value, so that the form never depends on T.

    device: "cpu", "cuda", ...; dims: the widths of one token (heads, K, V, D ...); grad: a gradient will be
    asked for; mixed: not every tensor has the dtype of the first, `dtype`.
    """

    device: str
    dtype: torch.dtype
    dims: tuple[int, ...]
    grad: bool
    mixed: bool = False


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A named set of implementations with one signature per operation, that of `ops.py` without defaults.

    supports: the reason why it can not run `op` for this call, one plain clause, or None when it can.
    """

    name: str
    ops: Mapping[str, Callable]
    supports: Callable[[str, Call], str | None]

    def refusal(self, op: str, call: Call) -> str | None:
        """Why this backend does not run `op` for this call; None when it does."""
        return self.supports(op, call) if op in self.ops else f"it has no {op}"


class Refusal(NamedTuple):
    """A backend that was asked and said no."""

    backend: str
    reason: str


class Choice(NamedTuple):
    """The backend that runs `op`, and those asked before it with their reasons."""

    op: str
    backend: str
    refusals: tuple[Refusal, ...]


# Every backend of this installation, by name. A new one is added here and nowhere else.
KNOWN = {
    "cpu": Backend(name="cpu", ops=cpu.OPS, supports=cpu.supports),
    "reference": Backend(name="reference", ops=reference.OPS, supports=reference.supports),
}


def backends() -> tuple[Backend, ...]:
    """Every backend of this installation, in ORDER."""
    return tuple(KNOWN[name] for name in ORDER if name in KNOWN)


def choose(known: Sequence[Backend], op: str, call: Call) -> Choice:
    """The first backend of `known` that runs `op` for this call.

    Raises: RequestError when none does, with the reason of each.
    """
    refusals: list[Refusal] = []
    for backend in known:
        reason = backend.refusal(op, call)
        if reason is None:
            return Choice(op, backend.name, tuple(refusals))
        refusals.append(Refusal(backend.name, reason))
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals)
    raise RequestError(f"no kernel runs {op} for {call.dtype} on {call.device} ({reasons}).")


_forced: ContextVar[str | None] = ContextVar("statewell_forced_backend", default=None)


@contextmanager
def use(name: str) -> Iterator[None]:
    """Run every operation inside the `with` on the backend `name`; one it lacks raises RequestError there."""
    names = [backend.name for backend in backends()]
    if name not in names:
        raise RequestError(f"there is no kernel backend '{name}' here; {nearest(name, names)}")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


def resolve(op: str, call: Call) -> Callable:
    """The function that runs `op` for this kind of call; pure, cached, each refusal logged once.

    torch.compile asks once, when it traces: what it compiled stays on the backend of that moment.
    """
    if torch.compiler.is_compiling():
        return KNOWN[_name_while_tracing(op, *call)].ops[op]
    return _resolve(op, call, _forced.get())


@torch.compiler.assume_constant_result
def _name_while_tracing(
    op: str, device: str, dtype: torch.dtype, dims: tuple[int, ...], grad: bool, mixed: bool
) -> str:
    # a tracer cannot look into the context variable, and may take a name for a constant, not a function
    return choose(_allowed(_forced.get()), op, Call(device, dtype, dims, grad, mixed)).backend


def _allowed(forced: str | None) -> list[Backend]:
    return [backend for backend in backends() if forced in (None, backend.name)]


@functools.lru_cache(maxsize=4096)
def _resolve(op: str, call: Call, forced: str | None) -> Callable:
    known = _allowed(forced)
    choice = choose(known, op, call)
    for refusal in choice.refusals:
        _log_refusal(op, choice.backend, refusal)
    return next(backend.ops[op] for backend in known if backend.name == choice.backend)


@functools.cache
def _log_refusal(op: str, backend: str, refusal: Refusal) -> None:
    """Cached, so that each (operation, backend, reason) is told once in the life of the process."""
    logger.info("%s runs on %s: %s refused, %s", op, backend, refusal.backend, refusal.reason)


def instruction_sets() -> tuple[str, ...]:
    """The instruction sets the compiled kernels can use here, the one in use first; none without compiled kernels."""
    return cpu.instruction_sets()


def use_instruction_set(name: str) -> AbstractContextManager[None]:
    """Run every compiled kernel inside the `with` on one of `instruction_sets()`; raises RequestError otherwise."""
    return cpu.use_instruction_set(name)


def handed_on() -> dict[str, str]:
    """By operation, which of its forms the compiled kernels leave to the reference; empty without them."""
    return dict(cpu.HANDED_ON) if cpu.instruction_sets() else {}


def explain(device: str = "cpu", dtype: torch.dtype = torch.float32, grad: bool = False) -> tuple[Choice, ...]:
    """For every operation the backend that would run it on this device and dtype, and every refusal before.

    Widths are not part of the question (`dims` is empty): a backend answers for the widths it likes best.
    """
    call = Call(device, dtype, (), grad)
    known = _allowed(_forced.get())
    return tuple(choose(known, op, call) for op in reference.OPS)
