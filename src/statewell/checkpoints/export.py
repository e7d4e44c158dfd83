"""Models out: a folder in a family's released layout, which transformers, vLLM and SGLang open.

The folder is whole or absent: it is written beside its place and renamed.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from statewell.checkpoints.byte_files import byte_tokenizer_files
from statewell.checkpoints.coverage import writing_rules
from statewell.checkpoints.families import LAYOUTS
from statewell.checkpoints.layout import Layout
from statewell.checkpoints.packed import expert_cache
from statewell.checkpoints.rules import Rule
from statewell.checkpoints.writer import SHARD_BYTES, Planned, write_tensors
from statewell.config.load import Json
from statewell.errors import RequestError
from statewell.formats.families import CONFIG, released_layout
from statewell.formats.family import TokenIds
from statewell.formats.storage import CONFIG_NAMES
from statewell.models.backbone import LanguageModel
from statewell.text.tokenizer import ByteTokenizer, Tokenizer

GENERATION = "generation_config.json"
_CONFIG_NAMES = {getattr(torch, name): name for name in CONFIG_NAMES.values()}


@dataclass(frozen=True, kw_only=True)
class Exported:
    """family: the layout's name. files: every file written, sorted by name."""

    family: str
    files: tuple[Path, ...]


def export(
    model: LanguageModel,
    out: Path,
    dtype: torch.dtype | None = None,
    ids: TokenIds | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Exported:
    """Write `model` into the folder `out` as its family was released: config, weights, tokenizer, generation config.

    Experts are packed in the file where they are in the model, and the config says which. dtype: of the weights, None
    for the model's own; what the family keeps in fp32 (A_log, dt_bias, the correction bias; K3's convolutions) stays as
    it is, bit for bit. ids: bos, eos and pad, None for the tokenizer's. Raises RequestError for a model that no layout
    holds, for experts on the disk, and for a folder that is not empty.
    """
    _require_free(out)
    if expert_cache(model) is not None:
        raise RequestError(f"{model.config.name} has its experts on the disk; load it with experts='packed' to export.")
    state = model.state_dict()
    packed = any(name.endswith("_packed") for name in state)
    storage = replace(model.config.storage, experts="mxfp4" if packed else None)
    family, config = released_layout(replace(model.config, storage=storage))
    layout = LAYOUTS[family.name]
    rules = writing_rules(layout.rules(model.config), state)
    ids = ids or _ids(model.tokenizer)
    _describe(config, dtype or model.embedding.weight.dtype, ids)
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        write_tensors(fresh, list(_plan(rules, state, layout, dtype)), _tensors(rules, state), shard_bytes)
        _write_json(fresh / CONFIG, config)
        _write_json(fresh / GENERATION, _generation(ids))
        for name, content in _tokenizer_files(model.tokenizer).items():
            (fresh / name).write_bytes(content)
        fresh.chmod(0o755)
        os.replace(fresh, out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Exported(family=family.name, files=tuple(sorted(out.iterdir())))


def _plan(
    rules: tuple[Rule, ...], state: dict[str, Tensor], layout: Layout, dtype: torch.dtype | None
) -> Iterator[Planned]:
    for rule in rules:
        ours = [state[target] for target in rule.targets]
        shapes = rule.stored_shapes([tuple(tensor.shape) for tensor in ours])
        stored = _stored(ours[0].dtype, dtype, rule.packed or any(map(layout.stays_fp32, rule.targets)))
        for source, accepted in zip(rule.sources, shapes, strict=True):
            yield Planned(layout.written_name(source), accepted[0], stored)


def _stored(own: torch.dtype, dtype: torch.dtype | None, exact: bool) -> torch.dtype:
    """The dtype in the file. exact: at most fp32, and otherwise as it is."""
    if dtype is None:
        return own
    if exact:
        return torch.float32 if own == torch.float64 else own
    return dtype


def _tensors(rules: tuple[Rule, ...], state: dict[str, Tensor]) -> Iterator[Tensor]:
    for rule in rules:
        yield from rule.write([state[target] for target in rule.targets])


def _describe(config: dict[str, Json], dtype: torch.dtype, ids: TokenIds) -> None:
    """Add what the family's own fields leave out, also where the text model has a section of its own."""
    eos: Json = list(ids.eos) if len(ids.eos) > 1 else ids.eos[0] if ids.eos else None
    inner = config.get("text_config")
    for fields in (config, inner):
        if isinstance(fields, dict):
            # each id is there, null or not: readers have defaults of their own, outside a small vocabulary
            fields |= {"dtype": _CONFIG_NAMES[dtype], "torch_dtype": _CONFIG_NAMES[dtype]}
            fields |= {"bos_token_id": ids.bos, "eos_token_id": eos, "pad_token_id": ids.pad}


def _generation(ids: TokenIds) -> dict[str, Json]:
    fields: dict[str, Json] = {"bos_token_id": ids.bos, "eos_token_id": list(ids.eos) or None, "pad_token_id": ids.pad}
    return {name: value for name, value in fields.items() if value is not None}


def _tokenizer_files(tokenizer: Tokenizer | None) -> Mapping[str, bytes]:
    if tokenizer is None:
        return {}
    return byte_tokenizer_files() if isinstance(tokenizer, ByteTokenizer) else tokenizer.files


def _ids(tokenizer: Tokenizer | None) -> TokenIds:
    """The separator stands before every document that the model was trained on, and after it."""
    if tokenizer is None:
        return TokenIds()
    specials = tokenizer.specials
    ends = specials.ends or {specials.separator}
    bos = specials.opening[0] if specials.opening else specials.separator
    return TokenIds(bos=bos, eos=tuple(sorted(ends)), pad=specials.pad)


def _require_free(out: Path) -> None:
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists():
        raise RequestError(f"{out} is there already; name a new folder with --out.")


def _write_json(path: Path, document: dict[str, Json]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
