"""K3's 16 chosen experts in MXFP4 at their true widths: the packed products against reading the same bytes.

python benchmarks/bench_packed_experts.py --json benchmarks/results/NAME/packed_experts.json

Reading is a sum over the packed bytes as 64-bit numbers, with as many threads. `dense` multiplies the same experts
unpacked to float32, 7.5 times the bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from alternate import alternate, report, row
from statewell.kernels import ops, registry
from statewell.kernels.packed import Packed, PackedExpert

EXPERTS, WIDTH, INNER = 16, 3072, 3584
TOKENS = (1, 4, 16, 64)


def draw(out: int, width: int, seed: int) -> Packed:
    """EXPERTS random matrices [out, width] with weights about 0.02 wide."""
    source = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (EXPERTS, out, width // 2), generator=source, dtype=torch.uint8)
    return Packed(packed, torch.randint(118, 121, (EXPERTS, out, width // 32), generator=source, dtype=torch.uint8))


def runs(tokens: int) -> dict[str, Callable[[], object]]:
    """What is timed for `tokens` tokens that all choose all experts."""
    matrices = (draw(WIDTH, INNER, 1), draw(WIDTH, INNER, 2), draw(INNER, WIDTH, 3))
    x = torch.randn(tokens, INNER, generator=torch.Generator().manual_seed(4))
    index, weight = torch.arange(EXPERTS).expand(tokens, -1).contiguous(), torch.full((tokens, EXPERTS), 1 / EXPERTS)
    numbers = [part.view(torch.int64) for matrix in matrices for part in matrix]

    def stream(wanted: Sequence[int]) -> Iterator[tuple[int, PackedExpert]]:
        for e in wanted:
            yield e, PackedExpert(*(Packed(m.packed[e], m.scale[e]) for m in matrices))

    def packed(name: str) -> Callable[[], object]:
        def run() -> None:
            with registry.use_instruction_set(name):
                ops.packed_experts(x, index, weight, stream, ops.situ)

        return run

    taken: dict[str, Callable[[], object]] = {"read": lambda: [part.sum() for part in numbers]}
    taken |= {f"packed {name}": packed(name) for name in registry.instruction_sets() if name != "scalar" or tokens == 1}
    if tokens in (1, 64):
        dense = [ops.mxfp4_dequantise(*matrix) for matrix in matrices]
        taken["dense"] = lambda: ops.experts(x, index, weight, *dense, ops.situ)
    return taken


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="record the result in this file")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    rows = []
    for tokens in TOKENS:
        seconds = alternate(runs(tokens), rounds=5)
        reading = seconds.pop("read")
        label = "1 token" if tokens == 1 else f"{tokens} tokens"
        rows.append(row(f"read {label}", reading))
        rows += [row(f"{name} {label}", taken, "read", reading) for name, taken in seconds.items()]
    report(rows, asked.json)


if __name__ == "__main__":
    main()
