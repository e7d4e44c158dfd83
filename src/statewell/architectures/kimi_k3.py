"""Kimi K3: Kimi Linear's two memories under attention residuals, with gates on both and experts in a latent space.

    KDA with a bounded gate    g = -5 sigmoid(exp(A_log) (f_b f_a x + dt_bias)),   g in (-5, 0)
    Gated MLA                  y = W_o (o * sigmoid(g_proj x)),   every fourth layer and the last two
    attention residuals        every sublayer reads a softmax mix over the sums of the groups before it
    LatentMoE                  y = up(norm(sum_e w_e E_e(down x))) + shared(x),   SiTU inside

Source: Kimi K3 technical report (arXiv 2607.24653) and the released `modeling_kimi_linear.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from statewell.config.layers import (
    INIT_STD,
    AttnResSpec,
    LatentMoESpec,
    LayerSpec,
    MLPSpec,
    ModelConfig,
    RMSNormSpec,
    SiTU,
    Storage,
)
from statewell.config.mixers import KDASpec, MLASpec


@dataclass(frozen=True, kw_only=True)
class KimiK3Parts:
    """The four kinds of sublayer a K3 model is made of."""

    kda: KDASpec
    mla: MLASpec
    dense: MLPSpec
    moe: LatentMoESpec


def kimi_k3(name: str, parts: KimiK3Parts, *, vocab: int, width: int, depth: int, group: int) -> ModelConfig:
    """`depth` layers: MLA every fourth and at the end, KDA elsewhere; the first FFN dense; AttnRes groups of
    `group`."""
    layers = tuple(
        LayerSpec(
            mixer=parts.mla if index % 4 == 3 or index == depth - 1 else parts.kda,
            ffn=parts.dense if index == 0 else parts.moe,
        )
        for index in range(depth)
    )
    return ModelConfig(
        name=name,
        architecture="kimi_k3",
        vocab=vocab,
        width=width,
        layers=layers,
        stream=AttnResSpec(group=group),
        norm=RMSNormSpec(eps=1e-5),
        init_std=INIT_STD * width**-0.5,
    )


def _released() -> ModelConfig:
    """Kimi K3's text model, from its released config.json: 93 layers, 896 experts in MXFP4."""
    parts = KimiK3Parts(
        kda=KDASpec(heads=96, key_dim=128, value_dim=128, output_gate="full", lower_bound=-5.0),
        mla=MLASpec(heads=96, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128, gate=True),
        dense=MLPSpec(width=33792, activation=SiTU()),
        moe=LatentMoESpec(experts=896, top_k=16, width=3072, shared_width=6144, latent=3584, activation=SiTU()),
    )
    storage = Storage(
        dtype="bf16",
        fp32=("A_log", "dt_bias", "q_conv", "k_conv", "v_conv", "o_norm", "correction_bias"),
        experts="mxfp4",
        a_log_entries=128,
    )
    config = kimi_k3("kimi-k3", parts, vocab=163840, width=7168, depth=93, group=12)
    return replace(config, context=1048576, init_std=0.02, storage=storage)


def _small(size: str, *, width: int, depth: int, heads: int, group: int, ffns: tuple[int, int, int]) -> ModelConfig:
    """`ffns`: inner widths of the dense layer, of one routed expert and of the shared expert."""
    head, (dense, expert, shared) = width // heads, ffns
    parts = KimiK3Parts(
        kda=KDASpec(heads=heads, key_dim=head, value_dim=head, output_gate="full", lower_bound=-5.0),
        mla=MLASpec(
            heads=heads,
            q_rank=width // 2,
            kv_rank=width // 2,
            nope_dim=head,
            rope_dim=head // 2,
            value_dim=head,
            gate=True,
        ),
        dense=MLPSpec(width=dense, activation=SiTU()),
        moe=LatentMoESpec(experts=8, top_k=2, width=expert, shared_width=shared, latent=width // 2, activation=SiTU()),
    )
    return kimi_k3(f"kimi_k3:{size}", parts, vocab=256, width=width, depth=depth, group=group)


RELEASED = {"kimi-k3": _released()}

SIZES = {
    "nano": _small("nano", width=64, depth=5, heads=2, group=2, ffns=(64, 32, 32)),
    "tiny": _small("tiny", width=128, depth=9, heads=4, group=4, ffns=(208, 64, 120)),
    "small": _small("small", width=384, depth=13, heads=6, group=4, ffns=(544, 256, 384)),
}
