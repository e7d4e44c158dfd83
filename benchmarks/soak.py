"""Hold an engine to its word for minutes: random requests join, leave, are cancelled and set aside; bytes are counted.

At every step: bytes in the gauges equal the sum over the memory's tensors and stay under the budget, rows in use are
those of whoever runs, and no request ends twice or says more than it may. Every few hundred turns, and at the end,
everything is let finish and let go, and memory is back at the start to the byte. The process has to stay level.

    python benchmarks/soak.py --minutes 10 --json benchmarks/results/NAME/soak.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import statewell as sw
from statewell.bench.speed import circumstances, write
from statewell.config.engine import EngineConfig
from statewell.engine.engine import Engine
from statewell.engine.request import Request, TokenEvent
from statewell.engine.sampling import Sampling
from statewell.errors import LimitError, StatewellError

MODELS = ("kimi_k3:nano", "gpt2:nano")  # states and pages; pages alone, which go back to any token
ROWS, LONGEST, MOST_LIVE, DRAIN_EVERY = 6, 700, 20, 300
PAGES, STATES = 60, 20  # of the budget, besides the rows' own slots
LEVEL_SHARE, LEVEL_BYTES = 0.05, 32 * 2**20  # what the process may grow by after the first fifth


class BrokenError(StatewellError):
    """Something that must never happen did; the seed and the turn say how to see it again."""


@dataclass
class Figures:
    """What happened."""

    turns: int = 0
    submitted: int = 0
    refused: int = 0
    cancelled: int = 0
    tokens: int = 0
    reused: int = 0
    prompt: int = 0
    drains: int = 0
    set_aside: int = 0
    peak_reserved_bytes: int = 0
    finish: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)


class Soak:
    """One model's engine and whoever talks to it."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.chance, self.figures = name, random.Random(f"{name} {seed}"), Figures()
        model = sw.build(name, seed=seed).eval()
        empty = Engine(model, EngineConfig(rows=ROWS))
        budget = empty.budget.slots + PAGES * empty.memory.page_bytes + STATES * empty.budget.spec.fixed_bytes
        config = EngineConfig(rows=ROWS, memory_budget=budget, prefill_chunk=96, state_every=64)
        self.engine, self.limit = Engine(model, config), budget
        self.at_start = self.engine.memory.bytes()
        self.live: dict[int, dict[int, int]] = {}  # request -> choice -> tokens said
        self.most: dict[int, int] = {}
        self._shared = [self._text(LONGEST) for _ in range(3)]

    def turn(self) -> None:
        """Whatever chance says, then one step, then every check."""
        self.figures.turns += 1
        if self.chance.random() < 0.25 and len(self.live) < MOST_LIVE:
            self._submit()
        if self.live and self.chance.random() < 0.03:
            self._cancel(self.chance.choice(list(self.live)))
        self._step()
        if self.figures.turns % DRAIN_EVERY == 0:
            self.drain()

    def drain(self) -> None:
        """Let everyone finish, let go of what is kept: memory is as at the start."""
        while self.engine.busy:
            self._step()
        self._require(not self.live, f"{len(self.live)} requests never ended")
        self.engine.reuse.clear()
        self._check()
        now = self.engine.memory.bytes()
        self._require(now == self.at_start, f"memory is {now}, at the start it was {self.at_start}")
        self._require(self.engine.memory.rows_in_use == 0, "a row is in use by nobody")
        self.figures.drains += 1

    def _submit(self) -> None:
        request = self._request()
        try:
            number = self.engine.submit(request)
        except LimitError:
            self.figures.refused += 1
            return
        self.figures.submitted += 1
        self.live[number] = dict.fromkeys(range(request.choices), 0)
        self.most[number] = request.max_tokens

    def _cancel(self, number: int) -> None:
        self._require(self.engine.cancel(number), f"request {number} was not there to cancel")
        self._check()
        self.figures.cancelled += 1

    def _step(self) -> None:
        for event in self.engine.step():
            self._take(event)
        self._check()

    def _take(self, event: TokenEvent) -> None:
        said = self.live.get(event.request, {})
        self._require(event.choice in said or event.finish == "cancelled", f"{event} is of nobody who is here")
        if event.token is not None:
            self.figures.tokens += 1
            said[event.choice] += 1
            self._require(said[event.choice] <= self.most[event.request], f"{event} is one token too many")
        if event.finish is not None:
            self.figures.finish[event.finish] += 1
            said.pop(event.choice, None)
        if event.usage is not None:
            reuse = event.usage.reuse
            self.figures.reused, self.figures.prompt = (
                self.figures.reused + reuse.tokens,
                self.figures.prompt + event.usage.prompt,
            )
            self.figures.missed["" if reuse.missed is None else _without_number(reuse.missed)] += 1
            self.live.pop(event.request)

    def _check(self) -> None:
        gauges, memory = self.engine.gauges(), self.engine.memory
        reserved = sum(gauges.reserved.values())
        tensors = sum(tensor.nbytes for tensor in memory.tensors().values())
        self._require(reserved == tensors, f"gauges say {reserved} bytes, tensors have {tensors}")
        self._require(reserved <= self.limit, f"{reserved} bytes are past the budget of {self.limit}")
        self._require(
            all(gauges.used[kind] <= gauges.reserved[kind] for kind in gauges.used), "more used than reserved"
        )
        self._require(gauges.rows <= ROWS and (gauges.running > 0 or gauges.rows == 0), f"{gauges.rows} rows leaked")
        self.figures.peak_reserved_bytes = max(self.figures.peak_reserved_bytes, reserved)
        self.figures.set_aside += gauges.set_aside

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise BrokenError(f"{self.name}, turn {self.figures.turns}: {otherwise}.")

    def _text(self, count: int) -> tuple[int, ...]:
        """Tokens of a small alphabet, so that they repeat and can be guessed."""
        return tuple(self.chance.choices(range(97, 105), k=count))

    def _request(self) -> Request:
        chance = self.chance
        shared = chance.choice(self._shared)[: chance.choice([0, 64, 128, chance.randint(1, 500)])]
        prompt = (*shared, *self._text(chance.choice([1, chance.randint(1, 40), chance.randint(1, 200)])))
        beams = chance.choice([1] * 12 + [2, 3])
        return Request(
            prompt=prompt,
            max_tokens=chance.choice([1, chance.randint(1, 20), chance.randint(1, 90)]),
            sampling=self._sampling(),
            choices=1 if beams > 1 else chance.choice([1, 1, 1, 2, 3]),
            beams=beams,
            stop=frozenset(chance.choice([(), (), (97,)])),
            logprobs=chance.choice([None, None, 0, 3]),
            echo=chance.random() < 0.05,
            owner=chance.choice(["", "one", "two"]),
            priority=chance.choice([0, 0, 0, 1, 2]),
            draft=0 if beams > 1 else chance.choice([0, 0, 0, 4]),
        )

    def _sampling(self) -> Sampling:
        chance = self.chance
        seed = chance.randrange(2**32)
        return chance.choice(
            [
                Sampling(temperature=0),
                Sampling(seed=seed),
                Sampling(seed=seed, temperature=1.3, top_k=20, top_p=0.9, min_p=0.05),
                Sampling(seed=seed, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.2),
                Sampling(temperature=0, logit_bias=((98, 2.0), (99, -100.0))),
            ]
        )


def _without_number(reason: str) -> str:
    return reason.rsplit(" token ", 1)[0]


def resident_bytes() -> int:
    """Of this process, as Linux counts them."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def soak(names: tuple[str, ...], seconds: float, seed: int) -> dict[str, object]:
    """Run all engines in turn for so long. Raises BrokenError, naming the turn, for anything that must not be."""
    soaks, resident = [Soak(name, seed) for name in names], []
    began = noted = time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        for each in soaks:
            each.turn()
        if now - noted >= 1:
            resident.append(resident_bytes())
            noted = now
    for each in soaks:
        each.drain()
    early, late = max(resident[: max(1, len(resident) // 5)]), resident_bytes()
    if late > early * (1 + LEVEL_SHARE) + LEVEL_BYTES:
        raise BrokenError(f"the process grew from {early:,} bytes in the first fifth to {late:,}.")
    return {
        "seconds": round(time.monotonic() - began, 1),
        "seed": seed,
        "resident_bytes": {"first_fifth": early, "end": late, "most": max(resident)},
        "engines": [
            {"model": each.name, "rows": ROWS, "memory_budget": each.limit, **vars(each.figures)} for each in soaks
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="such as kimi_linear:nano")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the result into this file")
    options = parser.parse_args()
    command = f"benchmarks/soak.py --minutes {options.minutes:g} --seed {options.seed}"
    result = circumstances(command) | soak(tuple(options.models), 60 * options.minutes, options.seed)
    print(json.dumps(result, indent=1))
    if options.json is not None:
        write(result, options.json)


if __name__ == "__main__":
    main()
