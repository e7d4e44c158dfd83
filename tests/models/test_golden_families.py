"""fla's and Qwen3-Next's goldens, loaded as any released checkpoint is; limits as in `tests/golden/README.md`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import statewell as sw
from tests.checkpoints.released_fixture import stored
from tests.models.golden import outputs
from tests.models.test_golden import FLOAT64_LIMIT, cases, largest, stepwise

GOLDEN = Path(__file__).parent.parent / "golden"
FOLDERS = [*sorted(path.name for path in GOLDEN.glob("fla_*")), "qwen3_next"]
FLOAT32_LIMIT = 5e-4
LOSS_LIMIT = 1e-6  # the reference's loss is float32 inside


@pytest.mark.parametrize("folder", FOLDERS)
@torch.no_grad()
def test_float64_logits_equal_the_golden_whole_stepwise_and_in_pieces_of_seven(folder):
    golden, model = outputs(folder), sw.load(GOLDEN / folder, dtype=torch.float64)
    assert len(cases(golden)) == 2
    for case in cases(golden):
        ids = golden[f"{case}/input_ids"]
        assert largest(model(ids), golden[f"{case}/logits"]) <= FLOAT64_LIMIT
        prompt = golden[f"{case}/prefill_logits"].shape[1]
        for piece in (prompt, 7):
            prefill, decode = stepwise(model, ids, prompt, piece)
            assert largest(prefill, golden[f"{case}/prefill_logits"]) <= FLOAT64_LIMIT
            assert largest(decode, golden[f"{case}/decode_logits"]) <= FLOAT64_LIMIT


@pytest.mark.parametrize("folder", FOLDERS)
@torch.no_grad()
def test_float32_logits_are_within_the_goldens_limit(folder):
    golden, model = outputs(folder), sw.load(GOLDEN / folder)
    for case in cases(golden):
        assert largest(model(golden[f"{case}/input_ids"]), golden[f"{case}/logits"]) <= FLOAT32_LIMIT


@torch.no_grad()
def test_qwen3_next_in_float32_equals_the_golden_that_ran_in_float32():
    golden, model = outputs("qwen3_next", "outputs_f32"), sw.load(GOLDEN / "qwen3_next")
    for case in cases(golden):
        assert largest(model(golden[f"{case}/input_ids"]), golden[f"{case}/logits"]) <= FLOAT32_LIMIT


@pytest.mark.parametrize("folder", FOLDERS)
@torch.no_grad()
def test_hidden_states_equal_the_golden_layer_by_layer(folder):
    golden, model = outputs(folder), sw.load(GOLDEN / folder, dtype=torch.float64)
    seen: list[Tensor] = []
    for block in model.blocks:
        # the running sum, in either kind of stream its last tensor
        block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][-1]))
    model.norm.register_forward_hook(lambda _, __, output: seen.append(output))
    for case in cases(golden):
        seen.clear()
        ids = golden[f"{case}/input_ids"]
        model(ids)
        assert len(seen) == len(model.blocks) + 1
        for index, hidden in enumerate(seen):
            assert largest(hidden.view(*ids.shape, -1), golden[f"{case}/hidden_states.{index}"]) <= FLOAT64_LIMIT


@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "recomputed"])
def test_qwen3_nexts_loss_and_gradients_equal_the_golden(recompute):
    golden, loaded = outputs("qwen3_next"), sw.load(GOLDEN / "qwen3_next", dtype=torch.float64)
    model = sw.build(loaded.config, recompute=recompute).double()
    model.load_state_dict(loaded.state_dict())
    ids = golden["loss/input_ids"]
    loss = torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    assert largest(loss.detach()[None], golden["loss/loss"]) <= LOSS_LIMIT
    # the rules that write weights write gradients too
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert gradients.keys() == dict(model.named_parameters()).keys()
    ours = stored(model.config, gradients)
    compared = {key.removeprefix("loss/grad."): value for key, value in golden.items() if key.startswith("loss/grad.")}
    assert len(compared) == 8
    for name, expected in compared.items():
        assert largest(ours[name], expected) <= LOSS_LIMIT, name
