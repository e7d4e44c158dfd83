"""`bench serve`: what the engine gains. Many requests at a time against one, the first token of a second turn against a
cold run, and how much of a step is the engine's own doing. Weights are random: the work does not depend on them.

Start at `cases`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import torch

from statewell.architectures import ARCHITECTURES
from statewell.bench.alternate import WARM, Case, SpeedRow, alternate, speed_row
from statewell.config.engine import EngineConfig
from statewell.engine.engine import Engine
from statewell.engine.request import Request
from statewell.engine.sampling import Sampling
from statewell.models import LanguageModel, build

GREEDY = Sampling(temperature=0)
PROMPT = 32  # tokens before the ones that are timed
NEW = 16  # tokens of the second turn's message
RELEASED = "gpt2"  # its 124 million parameters, with random values
SAID = 8  # tokens of the first turn's answer
ONE, COLD = "one request", "a cold run"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is. many: requests beside one. crowd: of the engine's own share. turn: tokens of a
    conversation when its second turn comes, short: of a model with few positions. rounds, turn_rounds: timed ones.
    """

    size: str
    many: int
    crowd: int
    turn: int
    short: int
    rounds: int
    turn_rounds: int


FULL = Scale(size="small", many=16, crowd=64, turn=4_096, short=960, rounds=21, turn_rounds=3)
QUICK = Scale(size="nano", many=4, crowd=8, turn=64, short=64, rounds=2, turn_rounds=1)


def cases(rounds: int | None, quick: bool) -> list[Case]:
    """Every case, in the order shown: each architecture, and GPT-2 small as it was released."""
    scale = QUICK if quick else FULL
    models = [f"{architecture}:{scale.size}" for architecture in ARCHITECTURES]
    models += [] if quick else [RELEASED]
    return [Case(name=name, measure=partial(_measure, name, scale, rounds)) for name in models]


def _measure(name: str, scale: Scale, rounds: int | None) -> list[SpeedRow]:
    model = build(name, seed=0).eval()
    return [
        _together(name, model, scale.many, rounds or scale.rounds),
        _second_turn(name, model, scale, rounds or scale.turn_rounds),
        _own_share(name, model, scale.crowd, rounds or scale.rounds),
    ]


def _together(name: str, model: LanguageModel, many: int, rounds: int) -> SpeedRow:
    """Steps of two engines in turn, of one request and of `many`: milliseconds for each token."""
    engines = {count: _decoding(model, count, rounds + WARM) for count in (1, many)}
    taken = alternate({str(count): engine.step for count, engine in engines.items()}, rounds)
    own = [1e3 * value / many for value in taken[str(many)]]
    return speed_row(
        f"{name}, a token of {many} requests at a time", "ms", own, ONE, [1e3 * value for value in taken["1"]]
    )


def _own_share(name: str, model: LanguageModel, crowd: int, rounds: int) -> SpeedRow:
    """Of each step, in percent: what is neither the model's pass nor the choosing of tokens."""
    engine, shares = _decoding(model, crowd, rounds + WARM), []
    for turn in range(WARM + rounds):
        before = engine.seconds.passes + engine.seconds.choosing
        began = time.perf_counter()
        engine.step()
        whole = time.perf_counter() - began
        if turn >= WARM:
            shares.append(100 * (1 - (engine.seconds.passes + engine.seconds.choosing - before) / whole))
    return speed_row(f"{name}, the engine's own share of a step with {crowd} requests", "%", shares)


def _decoding(model: LanguageModel, count: int, steps: int) -> Engine:
    """An engine whose `count` requests have read their prompts and have at least `steps` tokens to say."""
    engine = Engine(model, EngineConfig(rows=count))
    for place in range(count):
        engine.submit(Request(prompt=_text(model, PROMPT, place), max_tokens=steps + PROMPT * count, sampling=GREEDY))
    told: set[int] = set()
    while len(told) < count:
        told |= {event.request for event in engine.step()}
    return engine


def _second_turn(name: str, model: LanguageModel, scale: Scale, rounds: int) -> SpeedRow:
    """From the prompt of a second turn to its first token, where the first is kept and where nothing is."""
    limit = model.config.context
    length = scale.turn if limit is None or limit > scale.turn + NEW else scale.short
    warm, cold = Engine(model), Engine(model)
    first = _text(model, length - SAID, 0)
    number = warm.submit(Request(prompt=first, max_tokens=SAID, sampling=GREEDY))
    said = []
    while warm.busy:
        said += [event.token for event in warm.step() if event.request == number and event.token is not None]
    begun, messages = (*first, *said), iter(range(1, 10 * (WARM + rounds)))

    def turn(engine: Engine) -> None:
        # another message every time: the state after the last one must not serve the next
        _first_token(engine, (*begun, *_text(model, NEW, next(messages))))

    def from_nothing() -> None:
        cold.reuse.clear()
        turn(cold)

    taken = alternate({"kept": lambda: turn(warm), COLD: from_nothing}, rounds, warm=1)
    own, theirs = ([1e3 * value for value in taken[side]] for side in ("kept", COLD))
    return speed_row(f"{name}, first token after {length:,} tokens and {NEW} new ones", "ms", own, COLD, theirs)


def _first_token(engine: Engine, prompt: tuple[int, ...]) -> None:
    number = engine.submit(Request(prompt=prompt, max_tokens=2, sampling=GREEDY))
    while not any(event.token is not None for event in engine.step()):
        pass
    engine.cancel(number)
    engine.step()


def _text(model: LanguageModel, count: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(model.config.vocab, (count,), generator=generator).tolist())
