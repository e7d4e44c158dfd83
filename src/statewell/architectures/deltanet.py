"""DeltaNet: a write first reads what its key already holds, and stores only the difference.

    u_t = beta_t (v_t - S_{t-1}^T k_t)      S_t = S_{t-1} + k_t u_t^T      o_t = S_t^T q_t / sqrt(K)

q and k are unit vectors after a short convolution and SiLU; beta = sigmoid(b_proj x) is how far a write moves the read.
Source: Schlag et al. 2021, arXiv:2102.11174; Yang et al. 2024, arXiv:2406.06484.
"""

from __future__ import annotations

from statewell.config.layers import INIT_STD, LayerSpec, MLPSpec, ModelConfig, PlainStreamSpec, RMSNormSpec, SwiGLU
from statewell.config.mixers import DeltaSpec


def deltanet(name: str, *, vocab: int, width: int, depth: int, heads: int, ffn: int) -> ModelConfig:
    """Pre-norm layers of the delta rule and a SwiGLU MLP of inner width `ffn`."""
    layer = LayerSpec(
        mixer=DeltaSpec(heads=heads, key_dim=width // heads, value_dim=width // heads),
        ffn=MLPSpec(width=ffn, activation=SwiGLU()),
    )
    return ModelConfig(
        name=name,
        architecture="deltanet",
        vocab=vocab,
        width=width,
        layers=(layer,) * depth,
        stream=PlainStreamSpec(),
        norm=RMSNormSpec(eps=1e-6),
        init_std=INIT_STD * width**-0.5,
    )


RELEASED: dict[str, ModelConfig] = {}

SIZES = {
    "nano": deltanet("deltanet:nano", vocab=256, width=64, depth=4, heads=2, ffn=170),
    "tiny": deltanet("deltanet:tiny", vocab=256, width=128, depth=8, heads=4, ffn=340),
    "small": deltanet("deltanet:small", vocab=256, width=384, depth=12, heads=6, ffn=1022),
}
