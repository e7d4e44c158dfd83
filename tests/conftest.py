"""Settings of the whole suite: seeded, without deadlines (the machines are noisy)."""

from __future__ import annotations

import torch
from hypothesis import settings

settings.register_profile("suite", deadline=None, derandomize=True, database=None, max_examples=25)
settings.load_profile("suite")
torch.set_num_threads(1)  # most tensors of the suite are too small to share
