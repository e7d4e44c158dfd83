"""The chunkwise operations against the torch paths of transformers: KDA and the gated delta rule, forward, float32.

    python benchmarks/bench_chunkwise.py --json benchmarks/results/NAME.json

Peers are called as their models call them on a CPU; q and k come normalised to both. All are warmed and alternated in
one process whose allocator keeps its memory, which serves the peers most: they make the larger temporaries.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

from alternate import alternate, report, row
from statewell.kernels import ops

KEPT_BYTES = 31 * 2**20  # the C library keeps what it frees once a block of up to 32 MiB has been freed


def inputs(T: int, H: int, K: int, channels: bool) -> list[Tensor]:
    """q, k, v, g, beta of one row of T tokens with H heads and K = V, float32."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, T, H, K, generator=draw) for _ in range(3))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    g = -torch.rand(*((1, T, H, K) if channels else (1, T, H)), generator=draw)
    return [q, k, v, g, torch.rand(1, T, H, generator=draw)]


def against_peers(T: int, H: int, K: int, rounds: int) -> list[dict]:
    """KDA and the gated delta rule, ours and theirs, forward only; results are compared first."""
    rows = []
    peers = {"kda": chunk_kimi_delta_attention, "gated_delta": torch_chunk_gated_delta_rule}
    for name, peer in peers.items():
        x = inputs(T, H, K, channels=name == "kda")
        ours: Callable = getattr(ops, name)

        def run_ours(ours: Callable = ours, x: list[Tensor] = x) -> Tensor:
            return ours(*x)[0]

        def run_peer(peer: Callable = peer, x: list[Tensor] = x) -> Tensor:
            return peer(*x, initial_state=None, output_final_state=True)[0]

        with torch.no_grad():
            torch.testing.assert_close(run_ours(), run_peer(), rtol=1e-3, atol=1e-4)
            seconds = alternate({"ours": run_ours, "peer": run_peer}, rounds, warm=2)
        label = f"{name} forward B1 T{T} H{H} K=V={K}"
        rows.append(row(label, seconds["ours"], f"transformers {peer.__name__}", seconds["peer"]))
        rows.append(row(f"{label}, transformers", seconds["peer"]))
    return rows


def training_steps(N: int, T: int, H: int, K: int, rounds: int) -> list[dict]:
    """Forward and backward of the four operations on N packed segments of T tokens, as the models train."""
    bounds = torch.arange(N + 1) * T
    runs: dict[str, Callable[[], object]] = {}
    for name in ("linear", "delta", "gated_delta", "kda"):
        q, k, v, g, beta = inputs(N * T, H, K, channels=name == "kda")
        given = {"linear": [q.abs(), k.abs(), v], "delta": [q, k, v, beta]}.get(name, [q, k, v, g, beta])
        leaves = [x.requires_grad_() for x in given]
        weights = torch.randn_like(v)

        def run(name: str = name, leaves: list[Tensor] = leaves, weights: Tensor = weights) -> None:
            o, _ = getattr(ops, name)(*leaves, cu_seqlens=bounds)
            torch.autograd.grad(o, leaves, weights)

        runs[f"{name} forward+backward N{N} T{T} H{H} K=V={K}"] = run
    return [row(name, seconds) for name, seconds in alternate(runs, rounds, warm=2).items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    choice = parser.parse_args()
    torch.set_num_threads(choice.threads)
    kept = torch.ones(KEPT_BYTES, dtype=torch.uint8)
    del kept
    rows = against_peers(2048, 8, 128, choice.rounds)
    for K in (16, 32):
        rows += training_steps(8, 256, 4, K, choice.rounds)
    report(rows, choice.json)


if __name__ == "__main__":
    main()
