"""One small mixer of every registered kind, with seeded weights, for the laws to run over."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from statewell.config.layers import LayerSpec, MLPSpec, ModelConfig, PlainStreamSpec, RMSNormSpec, SwiGLU
from statewell.config.mixers import (
    AttentionSpec,
    DeltaSpec,
    GatedDeltaSpec,
    KDASpec,
    LinearSpec,
    MixerSpec,
    MLASpec,
    RotaryAttentionSpec,
)
from statewell.config.norms import OffsetRMSNormSpec
from statewell.memory.base import Memory
from statewell.memory.matrix import DeltaInputs, GatedDeltaInputs, LinearInputs
from statewell.memory.segments import Segments
from statewell.memory.store import DTYPE_NAMES, RowStore
from statewell.memory.tokens import KVInputs, LatentInputs
from statewell.models import build
from statewell.models.mixers import registered_mixers
from tests.tolerances import assert_close

WIDTH = 24

SPECS: dict[str, MixerSpec] = {
    "attention": AttentionSpec(heads=3, head_dim=8),
    "rotary": RotaryAttentionSpec(heads=3, kv_heads=3, head_dim=8, rotary_dim=8),
    "rotary_bias": RotaryAttentionSpec(
        heads=3, kv_heads=1, head_dim=8, rotary_dim=4, theta=100.0, bias=True, output_bias=True, qk_norm=RMSNormSpec()
    ),
    "rotary_qwen3_next": RotaryAttentionSpec(
        heads=4, kv_heads=2, head_dim=6, rotary_dim=2, theta=1e7, qk_norm=OffsetRMSNormSpec(), gate=True
    ),
    "linear": LinearSpec(heads=3, key_dim=8, value_dim=6),
    "linear_default_of_fla": LinearSpec(
        heads=3, key_dim=8, value_dim=6, feature_map="elementwise_product", normalize=False
    ),
    "linear_tied": LinearSpec(
        heads=4, kv_heads=2, key_dim=8, value_dim=6, feature_map="t2r", tied_maps=True, norm_weight=False
    ),
    "linear_hedgehog": LinearSpec(heads=3, key_dim=4, value_dim=6, feature_map="hedgehog", norm_q=True),
    "linear_dpfp": LinearSpec(heads=2, key_dim=4, value_dim=6, feature_map="dpfp", norm_k=True),
    "linear_relu": LinearSpec(heads=3, key_dim=8, value_dim=6, feature_map="relu", norm_q=True, norm_k=True),
    "linear_identity": LinearSpec(heads=3, key_dim=8, value_dim=6, feature_map="identity", normalize=False),
    "delta": DeltaSpec(heads=3, key_dim=8, value_dim=6),
    "delta_gate_neg": DeltaSpec(heads=3, key_dim=8, value_dim=6, gate=True, neg_eigval=True, conv=2, conv_bias=True),
    "delta_no_conv": DeltaSpec(heads=3, key_dim=8, value_dim=6, conv=None, beta=False),
    "delta_elu_sum": DeltaSpec(heads=3, key_dim=8, value_dim=6, qk_activation="elu", qk_norm="sum"),
    "delta_relu": DeltaSpec(heads=3, key_dim=8, value_dim=6, qk_activation="relu", conv=1),
    "delta_identity_no_conv": DeltaSpec(heads=3, key_dim=8, value_dim=6, qk_activation="identity", conv=None),
    "gated_delta": GatedDeltaSpec(heads=2, value_heads=4, key_dim=8, value_dim=6),
    "gated_delta_bare": GatedDeltaSpec(heads=2, value_heads=2, key_dim=8, value_dim=6, conv=None, gate=False),
    "gated_delta_neg": GatedDeltaSpec(
        heads=2, value_heads=4, key_dim=8, value_dim=6, conv=3, conv_bias=True, neg_eigval=True
    ),
    "kda": KDASpec(heads=3, key_dim=8, value_dim=8),
    "kda_k3": KDASpec(heads=3, key_dim=8, value_dim=8, output_gate="full", lower_bound=-5.0),
    "kda_full_gate_only": KDASpec(heads=3, key_dim=8, value_dim=8, output_gate="full"),
    "kda_bound_only": KDASpec(heads=3, key_dim=8, value_dim=8, lower_bound=-5.0),
    "kda_of_fla": KDASpec(
        heads=2, value_heads=4, key_dim=8, value_dim=6, conv_bias=True, neg_eigval=True, gate_bias=True
    ),
    "kda_no_conv": KDASpec(heads=2, value_heads=6, key_dim=8, value_dim=6, conv=None, lower_bound=-5.0),
    "mla": MLASpec(heads=3, q_rank=None, kv_rank=10, nope_dim=8, rope_dim=4, value_dim=6),
    "mla_k3": MLASpec(heads=3, q_rank=12, kv_rank=10, nope_dim=8, rope_dim=4, value_dim=6, gate=True),
    "mla_rank_only": MLASpec(heads=3, q_rank=12, kv_rank=10, nope_dim=8, rope_dim=4, value_dim=6),
    "mla_gate_only": MLASpec(heads=3, q_rank=None, kv_rank=10, nope_dim=8, rope_dim=4, value_dim=6, gate=True),
}
# one of each mixer; the others are its options
PLAIN = ("attention", "rotary_qwen3_next", "linear", "delta", "gated_delta", "kda", "kda_k3", "mla", "mla_k3")
assert {type(SPECS[name]) for name in PLAIN} == set(registered_mixers()), "a registered mixer has no laws"


def small_mixer(name: str, seed: int = 1) -> nn.Module:
    """The mixer `name`, float64, its weights large enough for gates and decays to matter."""
    layer = LayerSpec(mixer=SPECS[name], ffn=MLPSpec(width=8, activation=SwiGLU()))
    config = ModelConfig(
        name=name,
        architecture="law",
        vocab=11,
        width=WIDTH,
        layers=(layer,),
        stream=PlainStreamSpec(),
        norm=RMSNormSpec(),
        init_std=0.4,
    )
    return build(config, seed=seed).double().blocks[0].mixer


def new_memory(mixer: nn.Module, rows: int, dtype: torch.dtype = torch.float64, capacity: int | None = None) -> Memory:
    """An empty memory of `mixer`; `dtype` of caches and states alike."""
    name = DTYPE_NAMES[dtype]
    return mixer.new_memory(RowStore(mixer.spec.memory(name, name), rows, torch.device("cpu"), capacity))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def feed(mixer: nn.Module, memory: Memory, x: Tensor) -> Tensor:
    """x [rows, T, D] after all the memory's rows have taken in so far; -> [rows, T, D]."""
    rows, T, D = x.shape
    segments = Segments.equal(rows, T, tuple(range(rows)), tuple(memory.lengths))
    return mixer(x.reshape(1, rows * T, D), memory, segments).view(rows, T, -1)


def memory_inputs(spec: MixerSpec, tokens: int, seed: int = 3):
    """Random inputs of this kind of memory, [1, tokens, ...], ready for `mix`."""
    unit = nn.functional.normalize
    if isinstance(spec, AttentionSpec):
        return KVInputs(*(noise(1, tokens, spec.heads, spec.head_dim, seed=seed + i) for i in range(3)))
    if isinstance(spec, RotaryAttentionSpec):
        heads = (spec.heads, spec.kv_heads, spec.kv_heads)
        return KVInputs(*(noise(1, tokens, count, spec.head_dim, seed=seed + i) for i, count in enumerate(heads)))
    if isinstance(spec, MLASpec):
        q = noise(1, tokens, spec.heads, spec.nope_dim + spec.rope_dim, seed=seed)
        latent, rope = (
            noise(1, tokens, spec.kv_rank, seed=seed + 1),
            noise(1, tokens, spec.rope_dim, seed=seed + 2),
        )
        return LatentInputs(
            q, latent, rope, noise(spec.heads, spec.nope_dim + spec.value_dim, spec.kv_rank, seed=seed + 3)
        )
    width = spec.features if isinstance(spec, LinearSpec) else spec.key_dim
    q, k = (noise(1, tokens, spec.heads, width, seed=seed + i) for i in range(2))
    if isinstance(spec, LinearSpec):
        return LinearInputs(
            nn.functional.elu(q) + 1,
            nn.functional.elu(k) + 1,
            noise(1, tokens, spec.heads, spec.value_dim, seed=seed + 2),
        )
    HV = spec.heads
    if isinstance(spec, GatedDeltaSpec):
        HV = spec.value_heads
    elif isinstance(spec, KDASpec):
        HV = spec.states
    v, beta = (
        noise(1, tokens, HV, spec.value_dim, seed=seed + 2),
        2 * noise(1, tokens, HV, seed=seed + 3).sigmoid(),
    )
    if isinstance(spec, DeltaSpec):
        return DeltaInputs(unit(q, dim=-1), unit(k, dim=-1), v, beta)
    channels = (spec.key_dim,) if isinstance(spec, KDASpec) else ()
    g = -3 * noise(1, tokens, HV, *channels, seed=seed + 4).sigmoid()
    return GatedDeltaInputs(unit(q, dim=-1), unit(k, dim=-1), v, g, beta)


def one_token(x, begin: int, rows: int, stride: int):
    """Token `begin` of each of `rows` equal segments of length `stride`: the inputs without T."""
    at = [row * stride + begin for row in range(rows)]
    parts = {name: value if name == "up" else value[0, at] for name, value in x._asdict().items()}
    return type(x)(**parts)


def used_tensors(memory: Memory) -> dict[str, Tensor]:
    """Everything the memory holds, by name."""
    return memory.snapshot().tensors


def assert_same_memory(actual: Memory, expected: Memory) -> None:
    """Fail where two memories hold other tokens or tensors."""
    assert actual.lengths == expected.lengths
    held, wanted = used_tensors(actual), used_tensors(expected)
    assert held.keys() == wanted.keys()
    for tensor in held:
        assert_close(held[tensor], wanted[tensor], "memory")
