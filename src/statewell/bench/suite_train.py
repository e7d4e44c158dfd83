"""`bench train`: a whole training step (forward, loss, backward, AdamW), of our six against our GPT-2, and of that
against the GPT-2 of others. One sequence a step; at lengths past GPT-2's positions it is given more of them.

Start at `cases`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from statewell.architectures import ARCHITECTURES
from statewell.architectures.gpt2 import gpt2
from statewell.bench.alternate import OURS, WARM, Case, Line, Lineup, Run, time_lineup
from statewell.bench.limits import FLOPS, Work
from statewell.bench.peers import Peer
from statewell.bench.reach import reaching
from statewell.config.layers import ModelConfig
from statewell.models import build
from statewell.plan.flops import flops_per_token
from statewell.train.loss import mean_nats

SIZES, QUICK_SIZES = ("tiny", "small"), ("nano",)
TOKENS, QUICK_TOKENS = (1_024, 8_192), (64,)
ROUNDS, LONG_ROUNDS, QUICK_ROUNDS = 7, 3, 2
LONG = 4_096  # tokens from which a step takes seconds
BASELINE = "gpt2"
# nanoGPT's setting for a CPU
SMALL_BATCH = {"vocab": 256, "width": 128, "depth": 4, "heads": 4, "context": 64}
SMALL_BATCH_ROWS, SMALL_BATCH_ROUNDS = 12, 25


def cases(
    peers: Sequence[Peer],
    rounds: int | None,
    quick: bool,
    sizes: Sequence[str] = (),
    tokens: Sequence[int] = (),
) -> list[Case]:
    """Every case, in the order shown. sizes, tokens: instead of the usual ones."""
    able = [peer for peer in peers if peer.gpt2 is not None]
    made = [_small_batch(able, rounds or SMALL_BATCH_ROUNDS)] if able and not quick else []
    for T in tokens or (QUICK_TOKENS if quick else TOKENS):
        turns = rounds or (QUICK_ROUNDS if quick else LONG_ROUNDS if T >= LONG else ROUNDS)
        for size in sizes or (QUICK_SIZES if quick else SIZES):
            name = f"{size} training step, T={T:,}"
            made.append(_timed(name, partial(_six, able, size, T), turns))
    return made


def _timed(name: str, prepare: Callable[[str], Lineup], rounds: int) -> Case:
    return Case(name=name, measure=lambda: time_lineup(prepare(name), rounds))


def _six(peers: Sequence[Peer], size: str, T: int, name: str) -> Lineup:
    """All architectures and the other GPT-2s in turn; a row of each of ours."""
    ids = torch.randint(256, (1, T + 1), generator=torch.Generator().manual_seed(0))
    configs = {architecture: reaching(architecture, size, T) for architecture in ARCHITECTURES}
    runs = {architecture: training_step(build(config), ids) for architecture, config in configs.items()}
    others = _others(peers, configs[BASELINE], ids)
    lines = [
        Line(name=f"{BASELINE}:{name}", run=BASELINE, peer=other, work=step_work(configs[BASELINE], T))
        for other in others or [None]
    ]
    lines += [
        Line(name=f"{architecture}:{name}", run=architecture, peer=BASELINE, work=step_work(config, T))
        for architecture, config in configs.items()
        if architecture != BASELINE
    ]
    return Lineup(runs={**runs, **others}, lines=lines, warm=1 if T >= LONG else WARM)


def _others(peers: Sequence[Peer], config: ModelConfig, ids: Tensor) -> dict[str, Run]:
    return {peer.name: training_step(peer.gpt2(config), ids) for peer in peers if peer.gpt2 is not None}


def _small_batch(peers: Sequence[Peer], rounds: int) -> Case:
    """Many short rows through a small GPT-2, where calls cost as much as products."""

    def prepare(name: str) -> Lineup:
        config = gpt2("gpt2", **SMALL_BATCH)
        ids = torch.randint(256, (SMALL_BATCH_ROWS, 65), generator=torch.Generator().manual_seed(0))
        others = _others(peers, config, ids)
        runs = {OURS: training_step(build(config), ids), **others}
        return Lineup(runs=runs, lines=[Line(name=name, run=OURS, peer=other) for other in others])

    return _timed("gpt2 of 4 layers of 128, training step, 12 rows of T=64", prepare, rounds)


def training_step(model: nn.Module, ids: Tensor) -> Run:
    """One optimiser step on `ids` [B, T+1]."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        mean_nats(model(ids[:, :-1]), ids[:, 1:]).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def step_work(config: ModelConfig, T: int) -> Work:
    """Three times a forward's operations, at the context of the middle token."""
    return Work(amount=3 * T * flops_per_token(config, (T - 1) // 2), unit=FLOPS)
