"""The recurrent operations: compiled kernels against the reference, and both against the torch paths of transformers.

    python benchmarks/bench_chunkwise.py --json benchmarks/results/NAME.json

Float32. Peers are called as their models call them on a CPU; q and k come normalised to all. Everything is warmed and
alternated in one process whose allocator keeps its memory, which serves the peers most: they make the larger
temporaries. Without the compiled kernels their lines are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers.models.kimi_linear.modeling_kimi_linear import (
    chunk_kimi_delta_attention,
    recurrent_kimi_delta_attention,
)
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from alternate import alternate, report, row
from statewell.kernels import ops, registry

KEPT_BYTES = 31 * 2**20  # the C library keeps what it frees once a block of up to 32 MiB has been freed
CHUNK_PEERS = {"kda": chunk_kimi_delta_attention, "gated_delta": torch_chunk_gated_delta_rule}
STEP_PEERS = {
    "kda": recurrent_kimi_delta_attention,
    "gated_delta": torch_recurrent_gated_delta_rule,
    "delta": torch_recurrent_gated_delta_rule,
}

Runs = dict[str, Callable[[], object]]


def backend_names() -> list[str]:
    """The backends of this installation that compute on a CPU, the compiled one first where it is."""
    return ["cpu", "reference"] if registry.instruction_sets() else ["reference"]


def on(backend: str, run: Callable[[], object]) -> Callable[[], object]:
    """`run` with every operation on one backend."""

    def forced() -> object:
        with registry.use(backend):
            return run()

    return forced


def inputs(T: int, H: int, K: int, channels: bool) -> list[Tensor]:
    """q, k, v, g, beta of one row of T tokens with H heads and K = V, float32."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, T, H, K, generator=draw) for _ in range(3))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    g = -torch.rand(*((1, T, H, K) if channels else (1, T, H)), generator=draw)
    return [q, k, v, g, torch.rand(1, T, H, generator=draw)]


def compare(label: str, runs: Runs, rounds: int, peer: str | None, warm: int = 2) -> list[dict]:
    """One row a run; against `peer`, one of the runs, where there is one."""
    seconds = alternate(runs, rounds, warm=warm)
    rows = []
    for name, taken in seconds.items():
        against = (None, None) if peer is None or name == peer else (peer, seconds[peer])
        rows.append(row(f"{label}, {name}", taken, *against))
    return rows


def forward(name: str, T: int, H: int, K: int, rounds: int) -> list[dict]:
    """One operation without gradients; results are compared first."""
    x, peer = inputs(T, H, K, channels=name == "kda"), CHUNK_PEERS[name]
    runs: Runs = {backend: on(backend, lambda: getattr(ops, name)(*x)[0]) for backend in backend_names()}
    theirs = f"transformers {peer.__name__}"
    runs[theirs] = lambda: peer(*x, initial_state=None, output_final_state=True)[0]
    with torch.no_grad():
        for run in runs.values():
            torch.testing.assert_close(run(), runs[theirs](), rtol=1e-3, atol=1e-4)
        return compare(f"{name} forward B1 T{T} H{H} K=V={K}", runs, rounds, theirs)


def training(name: str, T: int, H: int, K: int, rounds: int) -> list[dict]:
    """Forward and backward of one operation, against the same through the peer."""
    leaves, peer = [x.requires_grad_() for x in inputs(T, H, K, channels=name == "kda")], CHUNK_PEERS[name]
    weights = torch.randn_like(leaves[2])

    def through(o: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(o, leaves, weights)

    runs: Runs = {backend: on(backend, lambda: through(getattr(ops, name)(*leaves)[0])) for backend in backend_names()}
    theirs = f"transformers {peer.__name__}"
    runs[theirs] = lambda: through(peer(*leaves, initial_state=None, output_final_state=True)[0])
    return compare(f"{name} forward+backward B1 T{T} H{H} K=V={K}", runs, rounds, theirs)


def decode(name: str, H: int, K: int, rounds: int) -> list[dict]:
    """One token of one row on a state in place, 50 times in a run: a call is too short to time by itself.

    The peer has no delta rule without a gate; its gated one does the same work with a gate of 0.
    """
    x, peer = inputs(1, H, K, channels=name == "kda"), STEP_PEERS[name]
    if name == "delta":
        x[3].zero_()
    state = torch.randn(1, H, K, K, generator=torch.Generator().manual_seed(1))
    single = [part[:, 0] for i, part in enumerate(x) if name != "delta" or i != 3]
    step = getattr(ops, f"{name}_step_")
    theirs = f"transformers {peer.__name__}"
    expected = peer(*x, initial_state=state, output_final_state=True)[0][:, 0]
    torch.testing.assert_close(step(*single, state.clone()), expected, rtol=1e-3, atol=1e-4)
    held = {backend: state.clone() for backend in backend_names()}
    runs: Runs = {backend: on(backend, repeated(partial(step, *single, held[backend]), 50)) for backend in held}
    runs[theirs] = repeated(lambda: peer(*x, initial_state=state, output_final_state=True), 50)
    with torch.no_grad():
        return compare(f"50 x {name} step N1 H{H} K=V={K}", runs, rounds, theirs)


def repeated(call: Callable[[], object], times: int) -> Callable[[], object]:
    """`call` so many times over, keeping none of its results."""

    def run() -> None:
        for _ in range(times):
            call()

    return run


def packed_training(name: str, N: int, T: int, H: int, K: int, rounds: int) -> list[dict]:
    """Forward and backward of one operation on N packed segments of T tokens, as the nano models train."""
    bounds = torch.arange(N + 1) * T
    q, k, v, g, beta = inputs(N * T, H, K, channels=name == "kda")
    given = {"linear": [q.abs(), k.abs(), v], "delta": [q, k, v, beta]}.get(name, [q, k, v, g, beta])
    leaves = [x.requires_grad_() for x in given]
    weights = torch.randn_like(v)

    def run() -> object:
        return torch.autograd.grad(getattr(ops, name)(*leaves, cu_seqlens=bounds)[0], leaves, weights)

    runs: Runs = {backend: on(backend, run) for backend in backend_names()}
    return compare(f"{name} forward+backward N{N} T{T} H{H} K=V={K}", runs, rounds, "reference")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--instructions", metavar="SET", help="one of the compiled instruction sets, not the default")
    parser.add_argument("--steps", action="store_true", help="the decode steps alone")
    choice = parser.parse_args()
    torch.set_num_threads(choice.threads)
    kept = torch.ones(KEPT_BYTES, dtype=torch.uint8)
    del kept
    with ExitStack() as stack:
        if choice.instructions:
            stack.enter_context(registry.use_instruction_set(choice.instructions))
        rows = steps(choice.rounds) if choice.steps else measure(choice.rounds)
    report(rows, choice.json)


def steps(rounds: int) -> list[dict]:
    """The rows of one token on a state in place."""
    return [entry for name in ("kda", "gated_delta", "delta") for entry in decode(name, 32, 128, rounds)]


def measure(rounds: int) -> list[dict]:
    """Every row of the benchmark."""
    rows: list[dict] = []
    for name in ("kda", "gated_delta"):
        rows += forward(name, 2048, 8, 128, rounds)
        rows += training(name, 512, 8, 128, rounds)
    rows += steps(rounds)
    rows += training("gated_delta", 2048, 8, 128, rounds)
    for K in (16, 32):
        for name in ("linear", "delta", "gated_delta", "kda"):
            rows += packed_training(name, 8, 256, 4, K, rounds)
    return rows


if __name__ == "__main__":
    main()
