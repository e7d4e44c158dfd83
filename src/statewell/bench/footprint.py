"""How much memory one forward and backward takes beyond its inputs: what the process really holds at its fullest.

Measured by the system in a process of its own, so that nothing is left out: not the temporaries of compiled code, not
what another library keeps. Linux says it through /proc. Start at `extra_bytes`; the process begins at `main`.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path

import torch

from statewell.bench.alternate import OURS
from statewell.bench.operations import BY_NAME, Shape
from statewell.errors import StatewellError

WARM_TOKENS = 64
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): the highest resident size starts again from the present one
# Freed blocks from here up go back to the system at once, so that what is resident is what is in use.
KEEP_BELOW_BYTES = 128 * 1024


def measurable() -> bool:
    """Whether this system tells a process the most it held."""
    return STATUS.exists() and CLEAR.exists()


def extra_bytes(operation: str, side: str, shape: Shape) -> int:
    """Most bytes resident during one forward and backward of `operation`, less those before it: output, gradients and
    everything in between. side: ours, or a peer's name. Raises StatewellError when the process fails.
    """
    words = [operation, side, *(str(size) for size in (shape.T, shape.H, shape.dim, torch.get_num_threads()))]
    environment = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": str(KEEP_BELOW_BYTES),
        "MALLOC_TRIM_THRESHOLD_": str(KEEP_BELOW_BYTES),
    }
    done = subprocess.run(
        [sys.executable, "-m", __name__, *words], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise StatewellError(f"the memory of {operation} by {side} could not be measured: {last}")
    return int(done.stdout)


def main(operation: str, side: str, T: str, H: str, dim: str, threads: str) -> None:
    """Print the bytes, after a short call that loads and starts whatever is loaded and started once."""
    from statewell.bench.peers import open_peer
    from statewell.bench.suite_ops import forward_backward

    torch.set_num_threads(int(threads))
    chosen = BY_NAME[operation]
    run = chosen.ours if side == OURS else open_peer(side).many[operation]
    forward_backward(chosen, run, Shape(T=WARM_TOKENS, H=int(H), dim=int(dim)))()
    call = forward_backward(chosen, run, Shape(T=int(T), H=int(H), dim=int(dim)))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text(RESET_PEAK)
    before = _resident("VmRSS")
    held = call()
    print(_resident("VmHWM") - before)
    del held


def _resident(name: str) -> int:
    """Bytes of one line of /proc/self/status."""
    lines = STATUS.read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


if __name__ == "__main__":
    main(*sys.argv[1:])
