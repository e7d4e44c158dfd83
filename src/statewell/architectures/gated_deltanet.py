"""Gated DeltaNet: the delta rule after a fade, so that stale associations can leave the state.

    S' = exp(g_t) S_{t-1}      u_t = beta_t (v_t - S'^T k_t)      S_t = S' + k_t u_t^T      o_t = S_t^T q_t / sqrt(K)

g = -exp(A_log) softplus(a_proj x + dt_bias), one scalar per head. The fade comes before the read: the correction is
measured against the faded state. Source: Yang, Kautz, Hatamizadeh 2025, arXiv:2412.06464.
"""

from __future__ import annotations

from statewell.config.layers import INIT_STD, LayerSpec, MLPSpec, ModelConfig, PlainStreamSpec, RMSNormSpec, SwiGLU
from statewell.config.mixers import GatedDeltaSpec


def gated_deltanet(name: str, *, vocab: int, width: int, depth: int, heads: int, ffn: int) -> ModelConfig:
    """Pre-norm layers of the gated delta rule, its output gated by SiLU, and a SwiGLU MLP of inner width `ffn`."""
    layer = LayerSpec(
        mixer=GatedDeltaSpec(heads=heads, value_heads=heads, key_dim=width // heads, value_dim=width // heads),
        ffn=MLPSpec(width=ffn, activation=SwiGLU()),
    )
    return ModelConfig(
        name=name,
        architecture="gated_deltanet",
        vocab=vocab,
        width=width,
        layers=(layer,) * depth,
        stream=PlainStreamSpec(),
        norm=RMSNormSpec(eps=1e-6),
        init_std=INIT_STD * width**-0.5,
    )


RELEASED: dict[str, ModelConfig] = {}

SIZES = {
    "nano": gated_deltanet("gated_deltanet:nano", vocab=256, width=64, depth=4, heads=2, ffn=148),
    "tiny": gated_deltanet("gated_deltanet:tiny", vocab=256, width=128, depth=8, heads=4, ffn=296),
    "small": gated_deltanet("gated_deltanet:small", vocab=256, width=384, depth=12, heads=6, ffn=892),
}
