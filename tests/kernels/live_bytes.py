"""Bytes of tensors alive while something runs, counted at every operation: the same figure every time."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Inside the `with`, `peak` is the most bytes alive at once in storages that were made there."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.known = {x.untyped_storage()._cdata for x in known}
        self.alive: dict[int, int] = {}
        self.watches: list[weakref.finalize] = []
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                self._see(x.untyped_storage())
        self.peak = max(self.peak, sum(self.alive.values()))
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known or key in self.alive:
            return
        self.alive[key] = storage.nbytes()
        self.watches.append(weakref.finalize(storage, self.alive.pop, key, None))


@contextmanager
def live_bytes(known: Sequence[Tensor]):
    """Count from here; the storages of `known` are not counted."""
    with LiveBytes(known) as counter:
        yield counter
    for watch in counter.watches:
        watch.detach()
