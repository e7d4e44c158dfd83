"""Whole models against numbers made by other implementations; limits as `tests/golden/README.md` gives them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from statewell.models.backbone import LanguageModel
from statewell.models.mixers.kda import KDA
from tests.models.golden import golden_model, in_our_names, outputs

FOLDERS = ["gpt2", "kimi_linear", "kimi_k3", "kimi_k3_dense"]
FLOAT64_LIMIT = 1e-9
FLOAT32_LIMIT = {"gpt2": 5e-4, "kimi_linear": 5e-4, "kimi_k3": 1e-3}
LOSS_LIMIT = {"gpt2": 1e-6, "kimi_linear": 1e-6, "kimi_k3_dense": 1e-9}


def cases(golden: dict[str, Tensor]) -> list[str]:
    return sorted({key.split("/")[0] for key in golden if key.startswith("B") and key.endswith("/logits")})


def largest(actual: Tensor, expected: Tensor) -> float:
    assert actual.shape == expected.shape
    return (actual.double() - expected.double()).abs().max().item()


def stepwise(model: LanguageModel, ids: Tensor, prompt: int, piece: int) -> tuple[Tensor, Tensor]:
    """Logits of the first `prompt` tokens taken in pieces, then of the rest one by one."""
    memory = model.new_memory(len(ids))
    first = [model(part, memory) for part in ids[:, :prompt].split(piece, dim=1)]
    rest = [model(ids[:, t : t + 1], memory) for t in range(prompt, ids.shape[1])]
    return torch.cat(first, dim=1), torch.cat(rest, dim=1)


@pytest.mark.parametrize("folder", FOLDERS)
@torch.no_grad()
def test_float64_logits_equal_the_golden_whole_stepwise_and_in_pieces_of_seven(folder):
    golden, model = outputs(folder), golden_model(folder)
    for case in cases(golden):
        ids, logits = golden[f"{case}/input_ids"], golden[f"{case}/logits"]
        assert largest(model(ids), logits) <= FLOAT64_LIMIT
        if f"{case}/decode_logits" in golden:
            prompt = golden[f"{case}/prefill_logits"].shape[1]
            for piece in (prompt, 7):
                prefill, decode = stepwise(model, ids, prompt, piece)
                assert largest(prefill, golden[f"{case}/prefill_logits"]) <= FLOAT64_LIMIT
                assert largest(decode, golden[f"{case}/decode_logits"]) <= FLOAT64_LIMIT


@pytest.mark.parametrize("folder", FLOAT32_LIMIT)
@torch.no_grad()
def test_float32_logits_are_within_the_goldens_limit(folder):
    golden, model = outputs(folder, "outputs_f32"), golden_model(folder, torch.float32)
    for case in cases(golden):
        assert largest(model(golden[f"{case}/input_ids"]), golden[f"{case}/logits"]) <= FLOAT32_LIMIT[folder]


@pytest.mark.parametrize("folder", ["gpt2", "kimi_linear"])
@torch.no_grad()
def test_hidden_states_equal_the_golden_layer_by_layer(folder):
    golden, model = outputs(folder), golden_model(folder)
    for case in cases(golden):
        seen = []
        hooks = [
            block.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0].h))
            for block in model.blocks
        ]
        hooks.append(model.norm.register_forward_hook(lambda _, __, output, seen=seen: seen.append(output)))
        ids = golden[f"{case}/input_ids"]
        model(ids)
        for hook in hooks:
            hook.remove()
        for index, hidden in enumerate(seen):
            assert largest(hidden.view(*ids.shape, -1), golden[f"{case}/hidden_states.{index}"]) <= FLOAT64_LIMIT


@torch.no_grad()
def test_k3_attention_residuals_routing_and_memory_equal_the_golden_inside():
    golden, model = outputs("kimi_k3"), golden_model("kimi_k3")
    ids, found = golden["B2T13/input_ids"], {}
    for index, block in enumerate(model.blocks):
        path = f"layer.{index}"
        for name, part, take_input in (
            ("attn_res_in", block.mixer_norm, True),
            ("attn_out", block.mixer, False),
            ("mlp_res_in", block.ffn_norm, True),
            ("ffn_out", block.ffn, False),
        ):
            part.register_forward_hook(
                lambda _, inputs, output, key=f"{path}.{name}", first=take_input: found.update(
                    {key: inputs[0] if first else output}
                )
            )
        block.register_forward_hook(lambda _, __, output, key=f"{path}.prefix_sum_out": found.update({key: output.p}))
    model.norm.register_forward_hook(lambda _, inputs, output: found.update(final_mix=inputs[0], final_normed=output))
    model(ids)
    for name, value in found.items():
        assert largest(value.view(*ids.shape, -1), golden[f"B2T13/{name}"]) <= FLOAT64_LIMIT, name
    for index in range(1, len(model.blocks)):
        router = model.blocks[index].ffn.router
        chosen, weight = router(
            found[f"layer.{index}.mlp_res_in"] * 0 + model.blocks[index].ffn_norm(found[f"layer.{index}.mlp_res_in"])
        )
        order, expected = chosen[0].argsort(-1), golden[f"B2T13/layer.{index}.topk_idx"].argsort(-1)
        assert torch.equal(chosen[0].gather(-1, order), golden[f"B2T13/layer.{index}.topk_idx"].gather(-1, expected))
        sorted_weight = golden[f"B2T13/layer.{index}.topk_weight"].gather(-1, expected)
        assert largest(weight[0].gather(-1, order), sorted_weight) <= FLOAT64_LIMIT


@torch.no_grad()
def test_k3_state_after_a_prompt_equals_the_golden_state_transposed():
    golden, model = outputs("kimi_k3"), golden_model("kimi_k3")
    prompt = golden["B1T90/prefill_logits"].shape[1]
    memory = model.new_memory(1)
    model(golden["B1T90/input_ids"][:, :prompt], memory)
    assert isinstance(model.blocks[0].mixer, KDA)
    held = memory.layers[0].tensors()
    assert largest(held["state"].transpose(-1, -2), golden["B1T90/prefill_state.layer0.recurrent_vk"]) <= FLOAT64_LIMIT
    assert (
        largest(held["q_tail"].transpose(-1, -2), golden["B1T90/prefill_state.layer0.conv_q"][..., 1:]) <= FLOAT64_LIMIT
    )


@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "recomputed"])
@pytest.mark.parametrize("folder", LOSS_LIMIT)
def test_loss_and_every_gradient_equal_the_golden(folder, recompute):
    golden, model = outputs(folder), golden_model(folder, recompute=recompute)
    case = "loss" if "loss/loss" in golden else "B2T13"
    ids = golden[f"{case}/input_ids"]
    logits = model(ids)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    assert largest(loss.detach()[None], golden[f"{case}/loss"]) <= LOSS_LIMIT[folder]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    expected = {
        key.removeprefix(f"{case}/grad."): value for key, value in golden.items() if key.startswith(f"{case}/grad.")
    }
    for name, value in in_our_names(folder, expected).items():
        assert gradients[name] is not None, name
        assert largest(gradients[name], value) <= LOSS_LIMIT[folder], name
    assert len(expected) >= 15
    unused = {name for name, gradient in gradients.items() if gradient is None}
    assert unused <= {"blocks.0.mixer_site.norm_weight", "blocks.0.mixer_site.query"}
