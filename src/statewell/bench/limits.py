"""What this machine can do at most, measured: fp32 products of torch, and reading memory that no cache holds.

Every speed of `bench` is also given as a share of one of the two. Start at `measure_limits`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

FLOPS, BYTES = "GFLOP/s", "GB/s"
SIZES = (512, 1024, 2048)
READ_BYTES = 256 * 2**20  # eight times the largest cache of the machines this was written on
QUICK_SIZES, QUICK_READ_BYTES = (256,), 64 * 2**20
ROUNDS, QUICK_ROUNDS = 7, 3


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one call does: `amount` floating-point operations, or bytes that must be read and written at least."""

    amount: float
    unit: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The two rates of this machine with the threads torch has. flops: per second, from each timing of the best square
    product. bytes: per second, from each timing of the best way to read. The limit is the highest of each.
    """

    flops: tuple[float, ...]
    flops_by: str
    bytes: tuple[float, ...]
    bytes_by: str

    def of(self, unit: str) -> float:
        """The limit of work in `unit`, per second: the best timing, since whatever else ran can only have slowed it."""
        return max(self.flops if unit == FLOPS else self.bytes)

    def or_better(self, other: Limits) -> Limits:
        """Of each rate that measurement which reached more."""
        flops = max(self, other, key=lambda limits: limits.of(FLOPS))
        read = max(self, other, key=lambda limits: limits.of(BYTES))
        return Limits(flops=flops.flops, flops_by=flops.flops_by, bytes=read.bytes, bytes_by=read.bytes_by)


def measure_limits(quick: bool = False) -> Limits:
    """Take a second or two to measure both; quick: smaller tries, good for a rough figure only."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    flops_by, flops = _best({f"N={N}": _product(N) for N in (QUICK_SIZES if quick else SIZES)}, rounds)
    bytes_by, read = _best(_reads(QUICK_READ_BYTES if quick else READ_BYTES), rounds)
    return Limits(flops=flops, flops_by=flops_by, bytes=read, bytes_by=bytes_by)


Try = tuple[Callable[[], object], float]  # a run and how much it does


def _product(N: int) -> Try:
    """out = a b, all [N, N] fp32: 2 N^3 operations."""
    a, b, out = (torch.ones(N, N) for _ in range(3))
    return lambda: torch.mm(a, b, out=out), 2 * N**3


def _reads(size: int) -> dict[str, Try]:
    """Ways to read `size` bytes once and write next to nothing; which one is fastest differs by machine."""
    x = torch.ones(size // 4)
    rows, ones = x.view(-1, 4096), torch.ones(4096)
    return {
        "a sum": (x.sum, size),
        "a maximum": (x.amax, size),
        "a matrix times a vector": (lambda: torch.mv(rows, ones), size),
    }


def _best(tries: dict[str, Try], rounds: int) -> tuple[str, tuple[float, ...]]:
    """The try that reached most, and all its rates, after one that is not timed."""
    rates: dict[str, list[float]] = {name: [] for name in tries}
    for turn in range(rounds + 1):
        for name, (run, amount) in tries.items():
            begin = time.perf_counter()
            run()
            if turn:
                rates[name].append(amount / (time.perf_counter() - begin))
    best = max(rates, key=lambda name: max(rates[name]))
    return best, tuple(rates[best])
