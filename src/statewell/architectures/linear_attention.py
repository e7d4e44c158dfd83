"""Linear attention: the softmax replaced by a feature map, so that the past folds into one matrix and one vector.

    S_t = S_{t-1} + φ(k_t) v_t^T      z_t = z_{t-1} + φ(k_t)      o_t = S_t^T φ(q_t) / (φ(q_t) . z_t),   φ = ELU + 1

It only adds: nothing is corrected and nothing fades. Positions come from the sum's order alone.
Source: Katharopoulos et al. 2020, arXiv:2006.16236.
"""

from __future__ import annotations

from statewell.config.layers import INIT_STD, LayerSpec, MLPSpec, ModelConfig, PlainStreamSpec, RMSNormSpec, SwiGLU
from statewell.config.mixers import LinearSpec


def linear_attention(name: str, *, vocab: int, width: int, depth: int, heads: int, ffn: int) -> ModelConfig:
    """Pre-norm layers of linear attention and a SwiGLU MLP of inner width `ffn`."""
    layer = LayerSpec(
        mixer=LinearSpec(heads=heads, key_dim=width // heads, value_dim=width // heads),
        ffn=MLPSpec(width=ffn, activation=SwiGLU()),
    )
    return ModelConfig(
        name=name,
        architecture="linear_attention",
        vocab=vocab,
        width=width,
        layers=(layer,) * depth,
        stream=PlainStreamSpec(),
        norm=RMSNormSpec(eps=1e-6),
        init_std=INIT_STD * width**-0.5,
    )


RELEASED: dict[str, ModelConfig] = {}

SIZES = {
    "nano": linear_attention("linear_attention:nano", vocab=256, width=64, depth=4, heads=2, ffn=174),
    "tiny": linear_attention("linear_attention:tiny", vocab=256, width=128, depth=8, heads=4, ffn=344),
    "small": linear_attention("linear_attention:small", vocab=256, width=384, depth=12, heads=6, ffn=1028),
}
