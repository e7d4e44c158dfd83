import os

import pytest
import torch
from torch import nn

from statewell.checkpoints.files import save_tensors
from statewell.errors import CheckpointError
from statewell.train.resume import KEPT, Progress, latest_state, load_state, save_state


class Net(nn.Module):
    """Two layers, one of them tied to a third, a buffer, and a parameter that no gradient reaches."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 4)
        self.b = nn.Linear(4, 3)
        self.tied = nn.Linear(3, 4)
        self.tied.weight = self.a.weight
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        return self.b(self.a(x)) + self.tied(x)[..., :3]


def make(steps, seed=0):
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for _ in range(steps):
        advance(model, optimizer)
    return model, optimizer


def advance(model, optimizer):
    optimizer.zero_grad()
    loss = model(torch.randn(5, 3)).square().mean()  # from the global generator, whose state must come back too
    loss.backward()
    optimizer.step()
    model.count += 1
    return loss.item()


@pytest.fixture(autouse=True)
def own_generator():
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.parametrize("steps", [0, 3])
def test_a_run_goes_on_to_the_last_bit_from_its_state(tmp_path, steps):
    model, optimizer = make(steps)
    progress = Progress(step=steps, tokens=steps * 5, elapsed_s=1.25, train_loss=1 / 3)
    save_state(tmp_path, "run", model, optimizer, progress)
    expected = [advance(model, optimizer) for _ in range(4)]

    other, other_optimizer = make(2, seed=9)
    other_optimizer.state.clear()
    restored = load_state(tmp_path, "run", other, other_optimizer, pytest.fail)
    assert restored == progress
    assert other.count == steps
    assert [advance(other, other_optimizer) for _ in range(4)] == expected
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert other.tied.weight is other.a.weight


def test_only_the_newest_states_before_this_step_are_kept(tmp_path):
    model, optimizer = make(1)
    for step in (0, 10, 9, 11, 100):
        save_state(tmp_path, "run", model, optimizer, Progress(step=step))
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "step-00000011.safetensors",
        "step-00000100.safetensors",
    ]
    assert KEPT == 2
    assert latest_state(tmp_path).name == "step-00000100.safetensors"


def test_a_later_damaged_state_does_not_push_out_good_ones(tmp_path):
    model, optimizer = make(1)
    for step in (5, 100, 6, 7):
        save_state(tmp_path, "run", model, optimizer, Progress(step=step))
    assert [int(path.stem.removeprefix("step-")) for path in sorted(tmp_path.iterdir())] == [6, 7, 100]


@pytest.mark.parametrize("damage", ["cut", "emptied", "foreign", "another run", "another model", "no random state"])
def test_a_bad_newest_state_is_passed_over_with_a_sentence(tmp_path, damage):
    model, optimizer = make(1)
    save_state(tmp_path, "run", model, optimizer, Progress(step=1))
    expected = model.a.weight.detach().clone()
    advance(model, optimizer)
    newest = save_state(tmp_path, "run", model, optimizer, Progress(step=2))
    if damage == "cut":
        os.truncate(newest, newest.stat().st_size // 2)
    elif damage == "emptied":
        os.truncate(newest, 0)
    elif damage == "foreign":
        save_tensors(newest, {"x": torch.ones(1)}, {})
    elif damage == "another run":
        save_state(tmp_path, "other", model, optimizer, Progress(step=2))
    elif damage == "another model":
        narrow = nn.Linear(3, 3)
        save_state(tmp_path, "run", narrow, torch.optim.AdamW(narrow.parameters()), Progress(step=2))
    else:
        from statewell.checkpoints.files import read_tensors

        tensors, metadata = read_tensors(newest)
        del tensors["rng.torch"]
        save_tensors(newest, tensors, metadata)
    said = []
    assert load_state(tmp_path, "run", model, optimizer, said.append).step == 1
    assert torch.equal(model.a.weight, expected)
    (sentence,) = said
    assert str(newest) in sentence


def test_nothing_changes_when_no_state_is_good(tmp_path):
    model, optimizer = make(1)
    path = save_state(tmp_path, "run", model, optimizer, Progress(step=1))
    os.truncate(path, 100)
    before = model.a.weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"None of the 1 states .* can be used"):
        load_state(tmp_path, "run", model, optimizer, lambda sentence: None)
    assert torch.equal(model.a.weight, before)
    assert path.exists()
    with pytest.raises(CheckpointError, match="there are none"):
        load_state(tmp_path / "empty", "run", model, optimizer, pytest.fail)
