"""What each mixer is, in widths and counts of channels: those that keep something of every token (`attention.py`) and
those that keep a matrix (`recurrent.py`).

Every spec answers `memory(cache_dtype, state_dtype)`: what one row of it holds. Growing caches and convolution tails
are kept in the cache dtype, matrix states in the state dtype.
"""

from __future__ import annotations

from statewell.config.attention import AttentionSpec, MLASpec, RotaryAttentionSpec
from statewell.config.recurrent import DeltaSpec, GatedDeltaSpec, KDASpec, LinearSpec

__all__ = [
    "AttentionSpec",
    "DeltaSpec",
    "GatedDeltaSpec",
    "KDASpec",
    "LinearSpec",
    "MLASpec",
    "MixerSpec",
    "RotaryAttentionSpec",
]

MixerSpec = AttentionSpec | RotaryAttentionSpec | LinearSpec | DeltaSpec | GatedDeltaSpec | KDASpec | MLASpec
