"""GPT-2: softmax attention over a cache of every key and value it has seen.

    o_t = sum_{s<=t} softmax_s(q_t . k_s / sqrt(head_dim)) v_s

Its memory is exact and grows by 2 x layers x width values per token. Positions are learned, so it ends at its table.
Source: Radford et al. 2019; released sizes from the `openai-community` configs.
"""

from __future__ import annotations

from dataclasses import replace

from statewell.config.layers import GELU, INIT_STD, LayerNormSpec, LayerSpec, MLPSpec, ModelConfig, PlainStreamSpec
from statewell.config.mixers import AttentionSpec


def gpt2(name: str, *, vocab: int, width: int, depth: int, heads: int, context: int) -> ModelConfig:
    """A GPT-2 of `depth` layers, the MLP four times as wide as the stream."""
    layer = LayerSpec(
        mixer=AttentionSpec(heads=heads, head_dim=width // heads, bias=True),
        ffn=MLPSpec(width=4 * width, activation=GELU(), bias=True),
    )
    return ModelConfig(
        name=name,
        architecture="gpt2",
        vocab=vocab,
        width=width,
        layers=(layer,) * depth,
        stream=PlainStreamSpec(),
        norm=LayerNormSpec(eps=1e-5),
        init_std=INIT_STD * width**-0.5,
        positions=context,
        context=context,
        tied=True,
    )


def released(name: str, width: int, depth: int, heads: int) -> ModelConfig:
    """One of the four released sizes: 50,257 tokens, 1,024 positions, fp32."""
    config = gpt2(name, vocab=50257, width=width, depth=depth, heads=heads, context=1024)
    return replace(config, init_std=0.02)


RELEASED = {
    "gpt2": released("gpt2", 768, 12, 12),
    "gpt2-medium": released("gpt2-medium", 1024, 24, 16),
    "gpt2-large": released("gpt2-large", 1280, 36, 20),
    "gpt2-xl": released("gpt2-xl", 1600, 48, 25),
}

SIZES = {
    "nano": gpt2("gpt2:nano", vocab=256, width=64, depth=4, heads=4, context=1024),
    "tiny": gpt2("gpt2:tiny", vocab=256, width=128, depth=8, heads=4, context=1024),
    "small": gpt2("gpt2:small", vocab=256, width=384, depth=12, heads=6, context=1024),
}
