"""What makes two models one for a snapshot: the same config and the same weights, to the bit."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from statewell.config.layers import Storage
from statewell.config.load import model_to_json
from statewell.models.backbone import LanguageModel


def fingerprint(model: LanguageModel) -> str:
    """64 hexadecimal digits: SHA-256 over the config and every parameter and buffer's name, dtype, shape and bytes.

    Every byte is read, so take it once after loading and keep it: a second for two to three gigabytes on two cores.
    The config's name and its stored dtypes are left out; experts that stay on disk are not in it.
    """
    config = model_to_json(replace(model.config, name="", storage=Storage()))
    tensors = sorted(model.state_dict().items())
    # hashlib lets other threads run; the order of the digests does not depend on who finishes first
    with ThreadPoolExecutor(max_workers=max(1, torch.get_num_threads())) as pool:
        digests = list(pool.map(_digest, (tensor for _, tensor in tensors)))
    described = [
        [name, str(tensor.dtype), list(tensor.shape), digest]
        for (name, tensor), digest in zip(tensors, digests, strict=True)
    ]
    return hashlib.sha256(json.dumps([config, described], sort_keys=True).encode()).hexdigest()


def _digest(tensor: Tensor) -> str:
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(raw.numpy().data).hexdigest()
