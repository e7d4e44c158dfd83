"""Memories that keep one matrix per head, side by side: what each forgets, how each writes, how each reads.

    additive     (linear attention)   never fades   adds k v^T                        reads S^T q / (z . q)
    unnormalised (linear attention)   never fades   adds k v^T                        reads S^T q
    delta        (DeltaNet)           never fades   moves what k retrieves toward v   reads S^T q
    gated delta  (Gated DeltaNet)     by head       as delta, after the fade          reads S^T q
    key decay    (KDA)                by channel    as delta, after the fade          reads S^T q

`forget`, `write` and `read` are the definition; `mix` is the same through `kernels.ops`, in the recurrent form where
every
segment is one token of a kept row and in the chunkwise form otherwise. Source: spec of each operation in
`kernels/ops.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewell.kernels import ops
from statewell.kernels.reference.recurrent import NORMALISER_EPS
from statewell.memory.base import Memory
from statewell.memory.segments import Segments
from statewell.memory.store import RowStore, Store


class LinearInputs(NamedTuple):
    """q, k: [1, T, H, K] after the feature map. v: [1, T, H, V]. Without T for one token of each row."""

    q: Tensor
    k: Tensor
    v: Tensor


class DeltaInputs(NamedTuple):
    """q, k: [1, T, H, K], unit length. v: [1, T, HV, V]. beta: [1, T, HV], write strength in [0, 2]."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor


class GatedDeltaInputs(NamedTuple):
    """As DeltaInputs, with g, log retention: [1, T, HV] (one per head) or [1, T, HV, K] (one per key channel)."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


class Tails:
    """The last raw inputs of each short convolution, kept in the memory they belong to."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def convolve(self, name: str, x: Tensor, weight: Tensor, segments: Segments) -> Tensor:
        """x [1, T, D] through the causal convolution `weight` [D, W], continuing each row's tail `name`."""
        tail = self._store.take(f"{name}_tail", segments)
        if tail is not None:
            tail = tail.to(x.dtype)
        y, tail = ops.short_conv(x, weight, tail, segments.cu_seqlens)
        self._store.put(f"{name}_tail", segments, tail)
        return y


def _retrieved(state: Tensor, key: Tensor) -> Tensor:
    """S^T k for every row and head: [rows, HV, V]; value heads share query/key heads in consecutive runs."""
    key = key.repeat_interleave(state.shape[1] // key.shape[1], dim=1).to(state.dtype)
    return torch.einsum("nhkv,nhk->nhv", state, key)


def _add_outer(state: Tensor, key: Tensor, value: Tensor) -> None:
    """S += k value^T in place."""
    key = key.repeat_interleave(state.shape[1] // key.shape[1], dim=1).to(state.dtype)
    state += key[..., None] * value.to(state.dtype)[..., None, :]


def _whole_state(store: RowStore, name: str = "state") -> Tensor:
    """The tensor of all rows, to be changed in place."""
    return store.tensors()[name]


def _count_one(store: RowStore) -> None:
    """Every row has taken in one more token."""
    rows = len(store.lengths)
    store.advance(Segments.equal(rows, 1, tuple(range(rows))))


def _correct(memory: Memory[Any], x: DeltaInputs | GatedDeltaInputs) -> None:
    """The delta rule's write: move what each key retrieves toward v by the fraction beta."""
    state = _whole_state(memory.kept)
    _add_outer(state, x.k, x.beta.to(state.dtype)[..., None] * (x.v - _retrieved(state, x.k)))
    _count_one(memory.kept)


def _ask(memory: Memory[Any], x: LinearInputs | DeltaInputs | GatedDeltaInputs) -> Tensor:
    """The plain read: S^T q / sqrt(K)."""
    return (x.q.shape[-1] ** -0.5 * _retrieved(_whole_state(memory.kept), x.q)).to(x.v.dtype)


def _through(
    memory: Memory[Any], x: LinearInputs | DeltaInputs | GatedDeltaInputs, segments: Segments, forms: Forms
) -> Tensor:
    """All tokens of the stream through the state, by the step where every segment is one token of a kept row."""
    state = memory.store.take("state", segments)
    if state is not None and segments.single:
        o, state = forms.step(*(part[0] for part in x), state=state)
        o = o[None]
    else:
        o, state = forms.chunks(*x, state=state, cu_seqlens=segments.cu_seqlens)
    memory.store.put("state", segments, state)
    memory.store.advance(segments)
    return o


class Forms(NamedTuple):
    """The two forms of one operation whose state is a matrix alone."""

    step: Callable[..., tuple[Tensor, Any]]
    chunks: Callable[..., tuple[Tensor, Any]]


_linear_step = partial(ops.linear_step, normalize=False)
_linear = partial(ops.linear, normalize=False)


class AdditiveMemory(Memory[LinearInputs]):
    """Linear attention: S and z only ever grow. Source: arXiv:2006.16236, equations 10-12."""

    def forget(self, x: LinearInputs) -> None:
        """Nothing fades."""

    def write(self, x: LinearInputs) -> None:
        _add_outer(_whole_state(self.kept), x.k, x.v)
        z = _whole_state(self.kept, "z")
        z += x.k.to(z.dtype)
        _count_one(self.kept)

    def read(self, x: LinearInputs) -> Tensor:
        scale = x.q.shape[-1] ** -0.5
        z = _whole_state(self.kept, "z")
        weight = scale * (x.q.to(z.dtype) * z).sum(-1, keepdim=True)
        return (scale * _retrieved(_whole_state(self.kept), x.q) / (weight + NORMALISER_EPS)).to(x.v.dtype)

    def mix(self, x: LinearInputs, segments: Segments) -> Tensor:
        state, z = self.store.take("state", segments), self.store.take("z", segments)
        held = None if state is None or z is None else (state, z)
        if held is not None and segments.single:
            o, held = ops.linear_step(x.q[0], x.k[0], x.v[0], state=held)
            o = o[None]
        else:
            o, held = ops.linear(x.q, x.k, x.v, state=held, cu_seqlens=segments.cu_seqlens)
        self.store.put("state", segments, held[0])
        self.store.put("z", segments, held[1])
        self.store.advance(segments)
        return o


class UnnormalisedMemory(Memory[LinearInputs]):
    """Linear attention without the normaliser: S alone, read as it is. Source: arXiv:2307.08621, section 2.1."""

    def forget(self, x: LinearInputs) -> None:
        """Nothing fades."""

    def write(self, x: LinearInputs) -> None:
        _add_outer(_whole_state(self.kept), x.k, x.v)
        _count_one(self.kept)

    def read(self, x: LinearInputs) -> Tensor:
        return _ask(self, x)

    def mix(self, x: LinearInputs, segments: Segments) -> Tensor:
        return _through(self, x, segments, Forms(_linear_step, _linear))


class DeltaMemory(Memory[DeltaInputs]):
    """DeltaNet: nothing fades, a write corrects. Source: arXiv:2406.06484, section 2."""

    @property
    def tails(self) -> Tails:
        """The tails of q, k and v."""
        return Tails(self.store)

    def forget(self, x: DeltaInputs) -> None:
        """Nothing fades."""

    def write(self, x: DeltaInputs) -> None:
        _correct(self, x)

    def read(self, x: DeltaInputs) -> Tensor:
        return _ask(self, x)

    def mix(self, x: DeltaInputs, segments: Segments) -> Tensor:
        return _through(self, x, segments, Forms(ops.delta_step, ops.delta))


class GatedDeltaMemory(Memory[GatedDeltaInputs]):
    """Gated DeltaNet: the state fades by exp(g) per head, then a write corrects. Source: arXiv:2412.06464."""

    @property
    def tails(self) -> Tails:
        """The tails of q, k and v."""
        return Tails(self.store)

    def forget(self, x: GatedDeltaInputs) -> None:
        state = _whole_state(self.kept)
        state *= x.g.to(state.dtype).exp()[..., None, None]

    def write(self, x: GatedDeltaInputs) -> None:
        _correct(self, x)

    def read(self, x: GatedDeltaInputs) -> Tensor:
        return _ask(self, x)

    def mix(self, x: GatedDeltaInputs, segments: Segments) -> Tensor:
        return _through(self, x, segments, Forms(ops.gated_delta_step, ops.gated_delta))


class KeyDecayMemory(Memory[GatedDeltaInputs]):
    """KDA: each key channel fades by its own exp(g), then a write corrects. Source: arXiv:2510.26692."""

    @property
    def tails(self) -> Tails:
        """The tails of q, k and v."""
        return Tails(self.store)

    def forget(self, x: GatedDeltaInputs) -> None:
        state = _whole_state(self.kept)
        state *= x.g.to(state.dtype).exp()[..., None]

    def write(self, x: GatedDeltaInputs) -> None:
        _correct(self, x)

    def read(self, x: GatedDeltaInputs) -> Tensor:
        return _ask(self, x)

    def mix(self, x: GatedDeltaInputs, segments: Segments) -> Tensor:
        return _through(self, x, segments, Forms(ops.kda_step, ops.kda))
