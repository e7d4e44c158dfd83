"""Kimi's mixer: the delta rule with a fade per key channel. Two choices set Kimi Linear and K3 apart, both made when
the mixer is built: the gate's form (softplus, or bounded below) and the output gate's rank (low, or full).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from statewell.config.mixers import KDASpec
from statewell.kernels import ops
from statewell.memory.matrix import GatedDeltaInputs, KeyDecayMemory
from statewell.memory.segments import Segments
from statewell.memory.store import Store
from statewell.models.convolution import convolution
from statewell.models.parts import Linear, RMSNorm, empty, promoted


class KDA(nn.Module):
    """x [1, T, D] -> [1, T, D]. Source: arXiv:2510.26692 (Kimi Linear); arXiv 2607.24653, section 2 (K3)."""

    def __init__(self, spec: KDASpec, width: int, eps: float) -> None:
        super().__init__()
        self.spec = spec
        keys, values, rank = spec.heads * spec.key_dim, spec.states * spec.value_dim, spec.value_dim
        decays = spec.states * spec.key_dim
        self.q_proj = Linear(width, keys)
        self.k_proj = Linear(width, keys)
        self.v_proj = Linear(width, values)
        self.q_conv = convolution(keys, spec.conv, spec.conv_bias)
        self.k_conv = convolution(keys, spec.conv, spec.conv_bias)
        self.v_conv = convolution(values, spec.conv, spec.conv_bias)
        self.f_a_proj = Linear(width, rank)
        self.f_b_proj = Linear(rank, decays)
        self.b_proj = Linear(width, spec.states)
        self._strongest = 2.0 if spec.neg_eigval else 1.0
        self.A_log = empty(spec.states)
        self.dt_bias = empty(decays)
        if spec.output_gate == "full":
            self.g_proj = Linear(width, values)
            self._output_gate: Callable[[Tensor], Tensor] = self._full_gate
        else:
            self.g_a_proj = Linear(width, rank)
            self.g_b_proj = Linear(rank, values, bias=spec.gate_bias)
            self._output_gate = self._low_rank_gate
        self.o_norm = RMSNorm(spec.value_dim, eps)
        self.o_proj = Linear(values, width)
        bounded = None if spec.lower_bound is None else partial(ops.bounded_gate, lower_bound=spec.lower_bound)
        self._gate: Callable[[Tensor, Tensor, Tensor], Tensor] = bounded or ops.decay_gate

    def new_memory(self, store: Store) -> KeyDecayMemory:
        """A matrix memory with a fade per key channel, over `store`."""
        return KeyDecayMemory(store)

    def _full_gate(self, x: Tensor) -> Tensor:
        return self.g_proj(x)

    def _low_rank_gate(self, x: Tensor) -> Tensor:
        return self.g_b_proj(self.g_a_proj(x))

    def forward(self, x: Tensor, memory: KeyDecayMemory, segments: Segments) -> Tensor:
        keys, values = (self.spec.heads, -1), (self.spec.states, -1)
        tails = memory.tails
        q = self.q_conv(self.q_proj(x), "q", tails, segments).unflatten(-1, keys)
        k = self.k_conv(self.k_proj(x), "k", tails, segments).unflatten(-1, keys)
        v = self.v_conv(self.v_proj(x), "v", tails, segments).unflatten(-1, values)
        z = self.f_b_proj(self.f_a_proj(x)).unflatten(-1, values)
        g = self._gate(z, self.A_log, self.dt_bias.unflatten(0, values))
        beta = promoted(self.b_proj(x)).sigmoid() * self._strongest
        o = memory.mix(GatedDeltaInputs(ops.l2norm(q), ops.l2norm(k), v, g, beta), segments)
        gate = self._output_gate(x).unflatten(-1, values)
        return self.o_proj(ops.gated_rms_norm(o, self.o_norm.weight, gate, self.o_norm.eps, torch.sigmoid).flatten(-2))
