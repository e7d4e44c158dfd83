"""Kimi Linear: three layers of KDA, whose fade is per key channel, to one of latent attention, which forgets nothing.

    S' = diag(exp(g_t)) S_{t-1}      u_t = beta_t (v_t - S'^T k_t)      S_t = S' + k_t u_t^T      o_t = S_t^T q_t /
    sqrt(K)

g in R^K = -exp(A_log) softplus(f_b f_a x + dt_bias). Attention keeps one latent row per token and sees no positions:
the
recurrent layers carry the order. FFNs are a dense first layer, then experts. Source: Kimi Team 2025, arXiv:2510.26692.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from statewell.config.layers import (
    INIT_STD,
    LayerSpec,
    MLPSpec,
    ModelConfig,
    MoESpec,
    PlainStreamSpec,
    RMSNormSpec,
    Storage,
    SwiGLU,
)
from statewell.config.mixers import KDASpec, MLASpec


@dataclass(frozen=True, kw_only=True)
class KimiLinearParts:
    """The four kinds of sublayer a Kimi Linear model is made of."""

    kda: KDASpec
    mla: MLASpec
    dense: MLPSpec
    moe: MoESpec


def kimi_linear(name: str, parts: KimiLinearParts, *, vocab: int, width: int, depth: int) -> ModelConfig:
    """`depth` layers: MLA every fourth and at the end, KDA elsewhere; the first FFN dense, the others experts."""
    layers = tuple(
        LayerSpec(
            mixer=parts.mla if index % 4 == 3 or index == depth - 1 else parts.kda,
            ffn=parts.dense if index == 0 else parts.moe,
        )
        for index in range(depth)
    )
    return ModelConfig(
        name=name,
        architecture="kimi_linear",
        vocab=vocab,
        width=width,
        layers=layers,
        stream=PlainStreamSpec(),
        norm=RMSNormSpec(eps=1e-5),
        init_std=INIT_STD * width**-0.5,
    )


def _released() -> ModelConfig:
    """Kimi-Linear-48B-A3B, from its released config.json: bf16, gates' constants in fp32, no learned positions."""
    parts = KimiLinearParts(
        kda=KDASpec(heads=32, key_dim=128, value_dim=128),
        mla=MLASpec(heads=32, q_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
        dense=MLPSpec(width=9216, activation=SwiGLU()),
        moe=MoESpec(experts=256, top_k=8, width=1024, shared_width=1024, activation=SwiGLU(), scaling=2.446),
    )
    config = kimi_linear("kimi-linear-48b-a3b", parts, vocab=163840, width=2304, depth=27)
    return replace(config, context=1048576, init_std=0.02, storage=Storage(dtype="bf16", fp32=("A_log", "dt_bias")))


def _small(size: str, *, width: int, depth: int, heads: int, dense: int, expert: int, shared: int) -> ModelConfig:
    head = width // heads
    parts = KimiLinearParts(
        kda=KDASpec(heads=heads, key_dim=head, value_dim=head),
        mla=MLASpec(heads=heads, q_rank=None, kv_rank=width // 2, nope_dim=head, rope_dim=head // 2, value_dim=head),
        dense=MLPSpec(width=dense, activation=SwiGLU()),
        moe=MoESpec(experts=8, top_k=2, width=expert, shared_width=shared, activation=SwiGLU(), scaling=2.446),
    )
    return kimi_linear(f"kimi_linear:{size}", parts, vocab=256, width=width, depth=depth)


RELEASED = {"kimi-linear-48b-a3b": _released()}

SIZES = {
    "nano": _small("nano", width=64, depth=4, heads=2, dense=132, expert=32, shared=72),
    "tiny": _small("tiny", width=128, depth=8, heads=4, dense=312, expert=64, shared=176),
    "small": _small("small", width=384, depth=12, heads=6, dense=896, expert=256, shared=448),
}
