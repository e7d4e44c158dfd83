"""The rules of every family, by the name that `formats.families` knows it by."""

from __future__ import annotations

from statewell.checkpoints.families import fla, gpt2, kimi_k3, kimi_linear, qwen3_next
from statewell.checkpoints.layout import Layout

LAYOUTS: dict[str, Layout] = {
    "gpt2": gpt2.LAYOUT,
    "fla": fla.LAYOUT,
    "qwen3_next": qwen3_next.LAYOUT,
    "kimi_linear": kimi_linear.LAYOUT,
    "kimi_k3": kimi_k3.LAYOUT,
}
