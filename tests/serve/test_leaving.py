"""Clients that go away at any moment: before the first token, mid-prefill, mid-stream; all comes back to the byte."""

from __future__ import annotations

import asyncio
import random

import pytest

import statewell as sw
from statewell.serve.limits import Limits
from statewell.serve.run import make_served
from tests.serve.live import Caller, Live, config_in, empty, started

NAME = "gated_deltanet:nano"


async def events(served, count: int, seed: int) -> dict[str, int]:
    """`count` clients that come and go at random; how many saw what."""
    chance = random.Random(seed)
    seen = {"whole": 0, "left": 0}

    async def one(app) -> None:
        stream, leaves = chance.random() < 0.7, chance.choice([None, 0, 0, 1, 2, 5])
        body = {
            "model": served.name,
            "prompt": "".join(chance.choice("abcd ") for _ in range(chance.choice([1, 7, 60, 150]))),
            # who leaves before the end would have had long to wait
            "max_tokens": 400 if leaves == 0 or (leaves and stream) else chance.randint(1, 8),
            "n": chance.choice([1, 1, 1, 2, 3]),
            "stream": stream,
            "stop": chance.choice([None, "a", ["bc", "e"]]),
            "logprobs": chance.choice([None, 2]),
        }
        caller = Caller(body, leaves)
        task = asyncio.create_task(caller.ask(app))
        if leaves == 0:
            # at once, or a little into the queue, the prompt or the answer
            for _ in range(chance.choice([0, 1, 30])):
                await asyncio.sleep(0)
        await task
        seen["left" if caller.left.is_set() else "whole"] += 1
        if not caller.left.is_set():
            assert caller.status == 200, caller.pieces

    async with started(served) as app:
        before = await served.service.call(empty)
        waiting: set[asyncio.Task[None]] = set()
        for _ in range(count):
            waiting.add(asyncio.create_task(one(app)))
            if len(waiting) > chance.randint(1, 24):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        await asyncio.gather(*waiting)
        # a cancel is done when the next thing that is asked is done
        now = await served.service.call(lambda engine: engine.gauges())
        assert (now.running, now.waiting, now.set_aside, now.rows) == (0, 0, 0, 0)
        assert await served.service.call(empty) == before
    return seen


@pytest.mark.parametrize("arch", ["gated_deltanet", "gpt2"])
def test_sixty_random_comings_and_goings_leave_nothing(arch: str, tmp_path):
    served = make_served(sw.build(f"{arch}:nano", seed=3), config_in(tmp_path))
    seen = asyncio.run(events(served, 60, seed=1))
    assert min(seen.values()) > 5


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gpt2", "kimi_linear", "kimi_k3", "linear_attention"])
def test_a_thousand_random_comings_and_goings_leave_nothing(arch: str, tmp_path):
    served = make_served(sw.build(f"{arch}:nano", seed=3), config_in(tmp_path, draft=2))
    asyncio.run(events(served, 1000, seed=2))


def test_a_closed_connection_ends_its_request_within_a_step(server: Live):
    ask = {"model": NAME, "prompt": "a", "max_tokens": 100_000}
    with server.client() as http:
        with http.stream("POST", "/v1/completions", json=ask | {"stream": True}) as answer:
            lines = answer.iter_lines()  # kept: it closes the answer when it goes
            assert next(lines).startswith("data: ")
            assert server.gauges().running == 1
        for _ in range(2000):
            if server.gauges().running == 0:
                break
        assert server.gauges().running == 0


def test_a_client_that_takes_nothing_is_given_up_and_its_memory_comes_back(model, tmp_path):
    async def main() -> None:
        served = make_served(model, config_in(tmp_path, limits=Limits(send_s=0.2)))
        async with started(served) as app:
            caller = Caller({"model": NAME, "prompt": "a", "max_tokens": 100_000, "stream": True}, stuck=True)
            await asyncio.wait_for(caller.ask(app), 60)
            assert len(caller.pieces) == 1
            assert (await served.service.call(lambda engine: engine.gauges())).running == 0

    asyncio.run(main())
