"""How long `statewell inspect` takes from a cold interpreter on Kimi K3's 497,052 text tensors, in one file and in 96.

The files are sparse: real headers, an index and a config, no tensor's bytes. Five warm runs of each, in turn.

python benchmarks/bench_inspect.py --json benchmarks/results/NAME.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from alternate import alternate, report, row
from statewell.architectures import RELEASED
from statewell.formats.families import released_layout

RUN = "from statewell.cli.main import run; run()"
LAYERS, EXPERTS, SHARDS = 92, 896, 96
MATRICES = (("w1", 3072, 1792), ("w3", 3072, 1792), ("w2", 3584, 1536))
REST = 2_508  # tensors beside the experts


def tensors() -> list[tuple[str, str, list[int], int]]:
    """Name, dtype, shape and bytes of each: the experts as they are, the rest as small vectors of the same number."""
    found = [(f"language_model.model.layers.{i % 93}.rest.{i}.weight", "BF16", [7168], 14_336) for i in range(REST)]
    for layer in range(1, LAYERS + 1):
        for expert in range(EXPERTS):
            for name, rows, columns in MATRICES:
                path = f"language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}"
                found.append((f"{path}.weight_packed", "U8", [rows, columns], rows * columns))
                found.append((f"{path}.weight_scale", "U8", [rows, columns // 16], rows * columns // 16))
    return found


def write(path: Path, held: list[tuple[str, str, list[int], int]]) -> None:
    """A sparse safetensors file of these tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape, size in held:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    with open(path, "wb") as opened:
        opened.write(len(raw).to_bytes(8, "little") + raw)
        opened.truncate(8 + len(raw) + at)


def write_folders(folder: Path) -> dict[str, Path]:
    """A folder with one file and one with an index, each with K3's config."""
    held = tensors()
    document = json.dumps(released_layout(RELEASED["kimi-k3"])[1])
    one, many = folder / "one", folder / "many"
    for each in (one, many):
        each.mkdir()
        (each / "config.json").write_text(document)
    write(one / "model.safetensors", held)
    weight_map: dict[str, str] = {}
    for shard in range(SHARDS):
        name = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        part = held[shard * len(held) // SHARDS : (shard + 1) * len(held) // SHARDS]
        write(many / name, part)
        weight_map |= {tensor[0]: name for tensor in part}
    index = {"metadata": {"total_size": sum(tensor[3] for tensor in held)}, "weight_map": weight_map}
    (many / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True))
    return {f"{len(held):,} tensors in 1 file": one, f"{len(held):,} tensors in {SHARDS} files": many}


def process(path: Path) -> Callable[[], object]:
    """A run of the command in an interpreter of its own; it has to find nothing wrong."""

    def run() -> None:
        command = [sys.executable, "-c", RUN, "inspect", str(path), "--json"]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        problems = json.loads(done.stdout)["problems"]
        if problems:
            raise SystemExit(f"inspect found: {problems[0]}")

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="record the result in this file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = write_folders(Path(folder))
        seconds = alternate({name: process(path) for name, path in paths.items()}, rounds=5, warm=1)
    report([row(f"statewell inspect, {name}", taken) for name, taken in seconds.items()], asked.json)


if __name__ == "__main__":
    main()
