"""Released folders that are wrong: each told with file, tensor or field, expected and found."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import statewell as sw
from statewell.checkpoints.reader import MappedFiles
from statewell.errors import CheckpointError
from statewell.formats.listing import open_listing
from tests.models.golden import GOLDEN

IDS = torch.arange(20)[None]


@pytest.fixture
def copy(tmp_path):
    def make(folder: str):
        target = tmp_path / folder
        shutil.copytree(
            GOLDEN / folder, target, ignore=shutil.ignore_patterns("outputs*"), copy_function=shutil.copyfile
        )
        return target

    return make


def change(folder, tensors=None, drop=(), **fields):
    """The folder with some tensors replaced or dropped, and some fields of its config changed."""
    path = folder / "model.safetensors"
    kept = {name: value for name, value in load_file(path).items() if name not in drop} | (tensors or {})
    save_file(kept, path)
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, **fields}))
    return folder


A_LOG = "model.layers.0.self_attn.A_log"
PACKED = "language_model.model.layers.1.block_sparse_moe.experts.3.w2.weight_packed"
CHANGES = {
    "shape": (
        "kimi_linear",
        {"tensors": {A_LOG: torch.zeros(5)}},
        f"model.safetensors: {A_LOG} has shape [5], expected [1, 1, 4, 1] or [4].",
    ),
    "transposed": (
        "gpt2",
        {"tensors": {"h.1.mlp.c_fc.weight": torch.zeros(128, 32)}},
        "model.safetensors: h.1.mlp.c_fc.weight has shape [128, 32], expected [32, 128].",
    ),
    "dtype": (
        "gpt2",
        {"tensors": {"ln_f.bias": torch.zeros(32, dtype=torch.int32)}},
        "model.safetensors: ln_f.bias is I32, expected F64 or F32 or BF16 or F16.",
    ),
    "packed_as_numbers": (
        "kimi_k3",
        {"tensors": {PACKED: torch.zeros(32, 16)}},
        f"model.safetensors: {PACKED} is F32, expected U8.",
    ),
    "missing": (
        "gpt2",
        {"drop": ("h.2.ln_1.bias",)},
        "1 of the model's tensors not in the file, first: h.2.ln_1.bias.",
    ),
    "expert_missing": ("kimi_k3", {"drop": (PACKED,)}, f"first: {PACKED.removeprefix('language_model.')}."),
    "extra": ("gpt2", {"tensors": {"h.3.ln_1.bias": torch.zeros(32)}}, "1 of the file's tensors not used, first: h.3."),
    "c_attn_bias_is_no_mask": ("gpt2", {"drop": ("h.0.attn.c_attn.bias",)}, "first: h.0.attn.c_attn.bias."),
    "both_prefixes": (
        "gpt2",
        {"tensors": {"transformer.wpe.weight": torch.zeros(64, 32)}},
        "The file holds both",
    ),
    "more_layers": ("gpt2", {"n_layer": 4}, "first: h.3."),
    "far_more_layers": ("gpt2", {"n_layer": 9000}, "config.json describes 114,"),
    "vocabulary": ("gpt2", {"vocab_size": 102}, "wte.weight has shape [101, 32], expected [102, 32]."),
    "unknown_field": ("gpt2", {"rotary_pct": 0.5}, "config.json: rotary_pct is 0.5, which statewell does not know"),
    "eos": (
        "kimi_linear",
        {"eos_token_id": 131},
        "config.json: eos_token_id is 131; an id of this vocabulary is 0 to 130",
    ),
    "pad": ("kimi_linear", {"pad_token_id": -2}, "config.json: pad_token_id is -2"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_folder_that_does_not_fit_is_refused_by_what_is_wrong(copy, name):
    folder, changes, words = CHANGES[name]
    path = change(copy(folder), **changes)
    with pytest.raises(CheckpointError) as caught:
        sw.load(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("cut", [1, 100_000])
def test_a_file_that_was_cut_is_refused(copy, cut):
    path = copy("gpt2") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(CheckpointError, match="cut short"):
        sw.load(path.parent)


def test_a_file_shortened_after_it_was_listed_is_refused_before_it_is_read(copy):
    path = copy("gpt2") / "model.safetensors"
    listing = open_listing(path)
    last = max(listing.tensors.values(), key=lambda stored: stored.entry.end).entry
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=f"was shortened: tensor {last.name} ends at byte"):
        MappedFiles(listing).tensor(last.name)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be mapped"):
        MappedFiles(listing).tensor(last.name)


@torch.no_grad()
def test_the_vision_side_is_left_out_and_other_fields_are_no_matter(copy):
    folder = copy("kimi_k3_dense")
    expected = sw.load(folder)(IDS)
    vision = {"vision_tower.patch_embed.weight": torch.zeros(3, 3), "mm_projector.proj.bias": torch.zeros(3)}
    change(folder, tensors=vision, vision_config={"hidden_size": 3}, transformers_version="4.57.1")
    assert torch.equal(sw.load(folder)(IDS), expected)


@torch.no_grad()
def test_weights_stay_where_they_are_and_writes_stay_in_the_process(copy):
    folder = copy("gpt2")
    before = (folder / "model.safetensors").read_bytes()
    model = sw.load(folder)
    # [in, out] in the file, used as it lies
    assert model.blocks[0].ffn.up_proj.weight.stride() == (1, 128)
    for parameter in model.parameters():
        parameter.add_(1)
    assert (folder / "model.safetensors").read_bytes() == before
    assert not torch.equal(sw.load(folder).embedding.weight, model.embedding.weight)


@torch.no_grad()
def test_a_tensor_that_lies_unevenly_is_copied(copy):
    folder = copy("gpt2")
    path = folder / "model.safetensors"
    expected = sw.load(folder)(IDS)
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    path.write_bytes((length + 1).to_bytes(8, "little") + raw[8 : 8 + length] + b" " + raw[8 + length :])
    assert torch.equal(sw.load(folder)(IDS), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_dtype_is_everywhere_but_where_it_would_narrow_a_gate(dtype):
    model = sw.load(GOLDEN / "kimi_k3", dtype=dtype, experts="dense")
    steering = torch.promote_types(dtype, torch.float32)
    for name, tensor in model.state_dict().items():
        narrow = name.endswith(("A_log", "dt_bias", "correction_bias"))
        assert tensor.dtype == (steering if narrow else dtype), name


def test_the_stored_dtypes_are_kept_unless_another_is_asked_for():
    kinds = {
        name.rsplit(".", 2)[-2]: tensor.dtype
        for name, tensor in sw.load(GOLDEN / "kimi_k3", experts="dense").state_dict().items()
    }
    assert kinds["q_conv"] == kinds["o_norm"] == torch.float32
    assert kinds["q_proj"] == kinds["experts"] == torch.bfloat16
