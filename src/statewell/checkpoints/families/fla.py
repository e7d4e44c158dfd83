"""The tensors of flash-linear-attention's models. Older files hold a network's gate and up projections as one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

from statewell.checkpoints.layout import Layout
from statewell.checkpoints.rules import Either, Entry, Ignore, Rename, Repeat, Split, Unsqueezed
from statewell.config.layers import AttnResSpec, MLPSpec, ModelConfig
from statewell.config.mixers import DeltaSpec, GatedDeltaSpec, KDASpec, LinearSpec, MixerSpec, RotaryAttentionSpec
from statewell.errors import CheckpointError

_MAP_LAYERS = {"elementwise_product": ("layer1", "layer2"), "hedgehog": ("layer",), "t2r": ("layer",)}
_MAP_BIAS = ("elementwise_product", "hedgehog")


def _rules(config: ModelConfig) -> tuple[Entry, ...]:
    rules: list[Entry] = [
        Rename("model.embeddings.weight", "embedding.weight"),
        Rename("model.norm.weight", "norm.weight"),
        Repeat("lm_head.weight", "model.embeddings.weight") if config.tied else Rename("lm_head.weight", "head.weight"),
        Ignore(r"model\.layers\.\d+\.attn\.rotary\.inv_freq", "follows from rope_theta"),
    ]
    if isinstance(config.stream, AttnResSpec):
        rules += _residuals("model.res", "output_site")
    for index, layer in enumerate(config.layers):
        theirs, ours = f"model.layers.{index}", f"blocks.{index}"
        rules.append(Rename(f"{theirs}.attn_norm.weight", f"{ours}.mixer_norm.weight"))
        rules.append(Rename(f"{theirs}.mlp_norm.weight", f"{ours}.ffn_norm.weight"))
        if isinstance(config.stream, AttnResSpec):
            rules += _residuals(f"{theirs}.attn_res", f"{ours}.mixer_site")
            rules += _residuals(f"{theirs}.mlp_res", f"{ours}.ffn_site")
        rules += _mixer(layer.mixer, f"{theirs}.attn", f"{ours}.mixer")
        if not isinstance(layer.ffn, MLPSpec):
            raise CheckpointError(f"layer {index} has a {layer.ffn.label}; fla's layers have a dense network.")
        rules.append(_mlp(layer.ffn, f"{theirs}.mlp", f"{ours}.ffn"))
    return tuple(rules)


def _weights(theirs: str, ours: str, names: Iterable[str]) -> list[Entry]:
    return [Rename(f"{theirs}.{name}.weight", f"{ours}.{name}.weight") for name in names]


def _residuals(theirs: str, ours: str) -> list[Entry]:
    return [
        Rename(f"{theirs}_norm.weight", f"{ours}.norm_weight"),
        Rename(f"{theirs}_proj.weight", f"{ours}.query", Unsqueezed(0)),
    ]


def _mlp(spec: MLPSpec, theirs: str, ours: str) -> Either:
    gate, up = f"{ours}.gate_proj.weight", f"{ours}.up_proj.weight"
    down = Rename(f"{theirs}.down_proj.weight", f"{ours}.down_proj.weight")
    apart = (Rename(f"{theirs}.gate_proj.weight", gate), Rename(f"{theirs}.up_proj.weight", up), down)
    fused = (Split(f"{theirs}.gate_proj.weight", (gate, up), (spec.width, spec.width)), down)
    return Either((apart, fused))


def _convolutions(spec: DeltaSpec | GatedDeltaSpec | KDASpec, theirs: str, ours: str) -> list[Entry]:
    rules: list[Entry] = []
    for x in "qkv" if spec.conv is not None else "":
        rules.append(Rename(f"{theirs}.{x}_conv1d.weight", f"{ours}.{x}_conv.weight", Unsqueezed(1)))
        if spec.conv_bias:
            rules.append(Rename(f"{theirs}.{x}_conv1d.bias", f"{ours}.{x}_conv.bias"))
    return rules


@singledispatch
def _mixer(spec: MixerSpec, theirs: str, ours: str) -> list[Entry]:
    raise CheckpointError(f"fla's layout has no {spec.label}.")


@_mixer.register
def _(spec: RotaryAttentionSpec, theirs: str, ours: str) -> list[Entry]:
    qkv = ("q_proj", "k_proj", "v_proj")
    biases = [Rename(f"{theirs}.{name}.bias", f"{ours}.{name}.bias") for name in qkv if spec.bias]
    return [*_weights(theirs, ours, (*qkv, "o_proj")), *biases]


def _feature_map(spec: LinearSpec, theirs: str, ours: str) -> list[tuple[str, str]]:
    names = [f"{layer}.weight" for layer in _MAP_LAYERS.get(spec.feature_map, ())]
    if spec.feature_map in _MAP_BIAS:
        names += [f"{layer}.bias" for layer in _MAP_LAYERS[spec.feature_map]]
    return [(f"{theirs}.{name}", f"{ours}.{name}") for name in names]


@_mixer.register
def _(spec: LinearSpec, theirs: str, ours: str) -> list[Entry]:
    rules = _weights(theirs, ours, ("q_proj", "k_proj", "v_proj", "o_proj"))
    if spec.norm_weight:
        rules.append(Rename(f"{theirs}.norm.weight", f"{ours}.o_norm.weight"))
    queries = _feature_map(spec, f"{theirs}.feature_map_q", f"{ours}.q_map")
    keys = _feature_map(spec, f"{theirs}.feature_map_k", f"{ours}.k_map")
    rules += [Rename(source, target) for source, target in queries]
    for (source, target), (original, _) in zip(keys, queries, strict=True):
        rules.append(Repeat(source, original) if spec.tied_maps else Rename(source, target))
    return rules


@_mixer.register
def _(spec: DeltaSpec, theirs: str, ours: str) -> list[Entry]:
    names = ["q_proj", "k_proj", "v_proj", "o_norm", "o_proj"]
    names += ["b_proj"] if spec.beta else []
    names += ["g_proj"] if spec.gate else []
    return [*_weights(theirs, ours, names), *_convolutions(spec, theirs, ours)]


@_mixer.register
def _(spec: GatedDeltaSpec, theirs: str, ours: str) -> list[Entry]:
    names = ["q_proj", "k_proj", "v_proj", "b_proj", "o_norm", "o_proj"]
    names += ["g_proj"] if spec.gate else []
    decay = f"{ours}.a_proj.weight"
    return [
        *_weights(theirs, ours, names),
        # NVIDIA's own code has the second name
        Either(((Rename(f"{theirs}.a_proj.weight", decay),), (Rename(f"{theirs}.gk_proj.weight", decay),))),
        *(Rename(f"{theirs}.{name}", f"{ours}.{name}") for name in ("A_log", "dt_bias")),
        *_convolutions(spec, theirs, ours),
    ]


@_mixer.register
def _(spec: KDASpec, theirs: str, ours: str) -> list[Entry]:
    ranked = {"f_proj.0": "f_a_proj", "f_proj.1": "f_b_proj", "g_proj.0": "g_a_proj", "g_proj.1": "g_b_proj"}
    return [
        *_weights(theirs, ours, ("q_proj", "k_proj", "v_proj", "b_proj", "o_norm", "o_proj")),
        *(Rename(f"{theirs}.{source}.weight", f"{ours}.{target}.weight") for source, target in ranked.items()),
        Rename(f"{theirs}.g_proj.1.bias", f"{ours}.g_b_proj.bias"),
        *(Rename(f"{theirs}.{name}", f"{ours}.{name}") for name in ("A_log", "dt_bias")),
        *_convolutions(spec, theirs, ours),
    ]


LAYOUT = Layout(rules=_rules)
