"""Generation by every architecture against the model run from scratch on the whole text."""

from __future__ import annotations

import pytest
import torch

from statewell import architectures
from statewell.engine.generate import generate
from statewell.engine.sampling import Sampling
from statewell.models import build

GREEDY = Sampling(temperature=0)


@pytest.mark.parametrize("architecture", architectures.ARCHITECTURES)
def test_every_token_is_the_likeliest_after_the_whole_text_so_far(architecture):
    model = build(architectures.resolve(f"{architecture}:nano"), seed=3, dtype=torch.float64)
    prompt = "def main(argv):\n    return "
    tokens = [event.token for event in generate(model, prompt, max_tokens=12, sampling=GREEDY)]
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt.encode(), *tokens]]))
    expected = logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
    assert tokens == expected


@pytest.mark.parametrize("architecture", ["gpt2", "kimi_k3"])
def test_a_prompt_of_several_pieces_is_the_prompt_at_once(architecture):
    model = build(architectures.resolve(f"{architecture}:nano"), seed=3, dtype=torch.float64)
    prompt = torch.randint(256, (700,), generator=torch.Generator().manual_seed(0)).tolist()
    (event,) = generate(model, prompt, max_tokens=1, sampling=GREEDY)
    with torch.no_grad():
        assert event.token == model(torch.tensor([prompt]))[0, -1].argmax().item()
    assert event.statistics.prompt_tokens == 700


def test_gpt2_stops_at_its_own_context():
    model = build(architectures.resolve("gpt2:nano"), seed=0)
    limit = model.config.context
    events = list(generate(model, [1] * (limit - 2), max_tokens=10, sampling=GREEDY))
    assert len(events) == 3
    assert events[-1].finish_reason == "context"


@pytest.mark.parametrize("architecture", architectures.ARCHITECTURES)
def test_the_bytes_told_are_the_plans(architecture):
    config = architectures.resolve(f"{architecture}:nano")
    last = list(generate(build(config, seed=0), "abc", max_tokens=4))[-1]
    spec = config.memory(cache_dtype="fp32", state_dtype="fp32")
    assert last.statistics.used_bytes == spec.used([6])
    assert last.statistics.reserved_bytes == spec.reserved([6])
    assert last.statistics.dtypes == ("fp32",)


def test_a_memory_of_the_callers_still_learns_after_generating():
    model = build(architectures.resolve("kimi_k3:nano"), seed=0)
    memory = model.new_memory(1)
    list(generate(model, "abc", max_tokens=3, memory=memory))
    loss = model(torch.tensor([[1, 2, 3]]), memory).square().mean()
    loss.backward()
    assert all(tensor.is_inference() is False for tensor in memory.tensors().values())
