"""The engine over every released layout that loads: several requests together as each alone, in float64."""

from __future__ import annotations

import pytest
import torch

import statewell as sw
from statewell.config.engine import EngineConfig
from statewell.engine.engine import Engine
from statewell.engine.request import Request
from statewell.engine.sampling import Sampling
from tests.engine.alone import alone, run_all, tokens
from tests.models.golden import GOLDEN

FOLDERS = sorted(
    path.parent.name for path in GOLDEN.glob("*/config.json") if (path.parent / "model.safetensors").exists()
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_requests_together_give_what_each_gives_alone(folder: str):
    model = sw.load(GOLDEN / folder, dtype=torch.float64)
    engine = Engine(model, EngineConfig(rows=2, prefill_chunk=16, state_every=16))
    prompts = [tuple((7 * n * at + 3 * at + n) % model.config.vocab for at in range(5 + 14 * n)) for n in range(3)]
    requests = [
        Request(prompt=prompt, max_tokens=4, sampling=Sampling(temperature=0), draft=n)
        for n, prompt in enumerate(prompts)
    ]
    numbers = [engine.submit(request) for request in requests]
    events = run_all(engine)
    for number, request in zip(numbers, requests, strict=True):
        assert tokens(events, number) == alone(model, request)
