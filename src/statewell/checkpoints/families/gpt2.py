"""GPT-2's tensors. Every matrix but the two tables is stored [in, out] and used as a transposed view.

The released file has no prefix; newer saves put `transformer.` before all but the head.
Source: `openai-community/gpt2`.
"""

from __future__ import annotations

from statewell.checkpoints.layout import Layout
from statewell.checkpoints.rules import Entry, Ignore, Rename, Repeat, Transposed
from statewell.config.layers import ModelConfig

_NORMS = (("ln_1", "mixer_norm"), ("ln_2", "ffn_norm"))
_MATRICES = (
    ("attn.c_attn", "mixer.qkv_proj"),
    ("attn.c_proj", "mixer.o_proj"),
    ("mlp.c_fc", "ffn.up_proj"),
    ("mlp.c_proj", "ffn.down_proj"),
)


def _rules(config: ModelConfig) -> tuple[Entry, ...]:
    rules: list[Entry] = [Rename("wte.weight", "embedding.weight"), Rename("wpe.weight", "positions.weight")]
    for index in range(len(config.layers)):
        theirs, ours = f"h.{index}", f"blocks.{index}"
        for source, target in _NORMS:
            rules.append(Rename(f"{theirs}.{source}.weight", f"{ours}.{target}.weight"))
            rules.append(Rename(f"{theirs}.{source}.bias", f"{ours}.{target}.bias"))
        for source, target in _MATRICES:
            rules.append(Rename(f"{theirs}.{source}.weight", f"{ours}.{target}.weight", Transposed()))
            rules.append(Rename(f"{theirs}.{source}.bias", f"{ours}.{target}.bias"))
    rules += [Rename("ln_f.weight", "norm.weight"), Rename("ln_f.bias", "norm.bias")]
    rules.append(Repeat("lm_head.weight", "wte.weight") if config.tied else Rename("lm_head.weight", "head.weight"))
    rules.append(Ignore(r"h\.\d+\.attn\.(bias|masked_bias)", "a buffer of the causal mask"))
    return tuple(rules)


LAYOUT = Layout(rules=_rules, prefix="transformer.")
