"""A training step (forward, backward, AdamW): our GPT-2 against the same model written plainly in torch, and the other
five against our GPT-2.

    python benchmarks/bench_train_step.py --json benchmarks/results/NAME.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alternate import alternate, report, row
from statewell.architectures import ARCHITECTURES
from statewell.architectures.gpt2 import gpt2
from statewell.models import build


class PlainBlock(nn.Module):
    """A GPT-2 block as one would write it for itself alone."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(o.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class PlainGPT2(nn.Module):
    """GPT-2 with learned positions and a tied head, nothing else."""

    def __init__(self, vocab: int, width: int, depth: int, heads: int, context: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(PlainBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.norm(self.blocks(x)) @ self.tokens.weight.T


def training_step(model: nn.Module, ids: Tensor) -> Callable[[], None]:
    """One optimiser step on `ids` [B, T+1]."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        logits = model(ids[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def against_plain(rounds: int) -> list[dict]:
    """nanoGPT's CPU setting: 4 layers, 4 heads, width 128, block 64, batch 12, 256 symbols."""
    shape = {"vocab": 256, "width": 128, "depth": 4, "heads": 4, "context": 64}
    ids = torch.randint(0, 256, (12, 65), generator=torch.Generator().manual_seed(0))
    runs = {
        "ours": training_step(build(gpt2("gpt2", **shape)), ids),
        "plain torch": training_step(PlainGPT2(**shape), ids),
    }
    seconds = alternate(runs, rounds=5 * rounds, warm=5)
    return [
        row("gpt2 4x128, block 64, batch 12: ours", seconds["ours"], "plain torch", seconds["plain torch"]),
        row("gpt2 4x128, block 64, batch 12: plain torch", seconds["plain torch"]),
    ]


def against_gpt2(size: str, rounds: int) -> list[dict]:
    """All six at T=1024, batch 1 for small and 2 below; ratio: our GPT-2's time over theirs."""
    batch = 1 if size == "small" else 2
    ids = torch.randint(0, 256, (batch, 1025), generator=torch.Generator().manual_seed(0))
    runs = {name: training_step(build(f"{name}:{size}"), ids) for name in ARCHITECTURES}
    seconds = alternate(runs, rounds)
    return [row(f"{name}:{size}, T=1024, batch {batch}", seconds[name], "gpt2", seconds["gpt2"]) for name in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="record the result in this file")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", nargs="*", default=["nano", "tiny", "small"])
    asked = parser.parse_args()
    rows = against_plain(asked.rounds)
    for size in asked.sizes:
        rows += against_gpt2(size, asked.rounds)
    report(rows, asked.json)


if __name__ == "__main__":
    main()
