"""How long GPT-2 small takes to load against reading its bytes, and how much memory that takes at most.

The folder is random weights in the released layout, about 500 MB in a temporary folder; it is in the page cache when
the timing starts. Loading keeps the weights mapped, so "and use" adds the logits of eight tokens, which touch every
matrix; another dtype copies every weight once. Peaks are of a process of its own, over what it held before the load
(imports), divided by the bytes of the loaded weights.

python benchmarks/bench_load.py --json benchmarks/results/NAME.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import statewell as sw
from alternate import alternate, report, row
from statewell.checkpoints.export import export

IDS = torch.arange(8)[None]
PEAK = """
import json, sys, torch, statewell as sw
def resident(kind):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(kind)) * 1024
folder, dtype, use = sys.argv[1], sys.argv[2], sys.argv[3] == "use"
sw.load("gpt2:nano")(torch.zeros(1, 1, dtype=torch.long))  # every module is imported and every thread started
torch.set_grad_enabled(False)
before = resident("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
model = sw.load(folder, dtype=None if dtype == "stored" else getattr(torch, dtype))
if use:
    for tensor in model.state_dict().values():
        tensor.sum()
size = sum(tensor.nbytes for tensor in model.state_dict().values())
print(json.dumps({"peak": resident("VmHWM") - before, "size": size}))
"""


def read(path: Path) -> None:
    """All bytes of the file, into fresh memory."""
    path.read_bytes()


@torch.no_grad()
def load_and_use(folder: Path) -> None:
    sw.load(folder)(IDS)


def peak(folder: Path, dtype: str, use: bool) -> dict[str, object]:
    """The largest resident memory of a load, over the bytes loaded."""
    command = [sys.executable, "-c", PEAK, str(folder), dtype, "use" if use else "load"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    what = f"peak memory / weights, {dtype}{', all read' if use else ''}"
    share = found["peak"] / found["size"]
    return {"name": what, "unit": "x", "median": share, "min": share, "max": share, "peer": None, "ratio": None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="record the result in this file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "gpt2"
        export(sw.build("gpt2"), folder)
        file = folder / "model.safetensors"
        seconds = alternate(
            {
                "read": lambda: read(file),
                "load": lambda: sw.load(folder),
                "use": lambda: load_and_use(folder),
                "bf16": lambda: sw.load(folder, dtype=torch.bfloat16),
            },
            rounds=5,
            warm=2,
        )
        rows = [
            row("read the file's bytes", seconds["read"]),
            row("load", seconds["load"], "reading", seconds["read"]),
            row("load and use: the logits of 8 tokens", seconds["use"], "reading", seconds["read"]),
            row("load as bf16", seconds["bf16"], "reading", seconds["read"]),
            peak(folder, "stored", use=False),
            peak(folder, "stored", use=True),
            peak(folder, "bfloat16", use=True),
            peak(folder, "float64", use=True),
        ]
    report(rows, asked.json)


if __name__ == "__main__":
    main()
