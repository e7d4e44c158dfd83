"""Whole inputs that mutations start from."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from safetensors.torch import save
from torch import bfloat16, float16, uint8, zeros

from statewell.architectures import ARCHITECTURES, preset
from statewell.config.load import model_to_json
from tests.formats.files_fixture import described
from tests.text.vocabularies import byte_level, kimi

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def _header_texts() -> list[bytes]:
    whole = {"a": described("F32", [2, 4], 0, 32), "b.weight_packed": described("U8", [2, 16], 32, 64)}
    spaced = {"__metadata__": {"format": "pt"}, "é": described("F64", [8], 0, 64)}
    return [json.dumps(whole, separators=(",", ":")).encode(), json.dumps(spaced).encode()]


def _snapshots() -> list[bytes]:
    metadata = {"format": "statewell-snapshot", "version": "1", "fingerprint": "f", "lengths": "[2, 0]", "note.t": "x"}
    return [save({"0.k.0": zeros(2, 3), "0.k.1": zeros(0, 3), "1.state": zeros(2, 2, dtype=bfloat16)}, metadata)]


def _written(make: Callable[[Path], Path], name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return (make(Path(folder)) / name).read_bytes()


@cache
def seeds(target: str) -> list[bytes]:
    """Of one target, each accepted by it."""
    configs = sorted(path for path in GOLDEN.glob("*/config.json") if path.parent.name != "ops")
    first, second = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    weight_map = {"x": first, "y": first, "z": second}
    made: dict[str, list[bytes]] = {
        "header": [
            save({"a": zeros(3), "b": zeros(2, 2, dtype=float16)}),
            save({"c": zeros(4, dtype=uint8)}, {"k": "v"}),
        ],
        "header_text": _header_texts(),
        "index": [json.dumps({"metadata": {"total_size": 24}, "weight_map": weight_map}).encode()],
        "config": [path.read_bytes() for path in configs if path.parent.name in ("gpt2", "kimi_linear", "kimi_k3")],
        "own_config": [json.dumps(model_to_json(preset(name, "nano"))).encode() for name in ARCHITECTURES],
        "snapshot": _snapshots(),
        "tokenizer_json": [_written(byte_level, "tokenizer.json")],
        "tiktoken_model": [_written(kimi, "tiktoken.model")],
    }
    return made[target]
