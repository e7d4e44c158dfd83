"""The config.json of flash-linear-attention's models: linear_attn, delta_net, gated_deltanet and kda, with any of their
layers replaced by softmax attention.

Fields and their defaults as in fla's `configuration_*.py`; older files lack the newer fields. Sizes of heads follow
from ratios (`expand_k`, `expand_v`) that are cut to whole numbers as fla cuts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from statewell.config.layers import (
    AttnResSpec,
    LayerSpec,
    MLPSpec,
    ModelConfig,
    PlainStreamSpec,
    RMSNormSpec,
    StreamSpec,
    SwiGLU,
)
from statewell.config.load import Json
from statewell.config.mixers import DeltaSpec, GatedDeltaSpec, KDASpec, LinearSpec, MixerSpec, RotaryAttentionSpec
from statewell.config.recurrent import FEATURES, LEARNED_MAPS, QK_ACTIVATIONS, QK_NORMS
from statewell.formats.family import Family
from statewell.formats.fields import MOST_LAYERS, Fields
from statewell.formats.fla_write import config_json
from statewell.formats.storage import storage

MLP_MULTIPLE = 256  # an inner width that the config leaves open is a multiple of this

_HARMLESS = (
    *("attn_mode", "max_position_embeddings", "use_output_norm"),  # use_output_norm: the layer never reads it
    *("fuse_norm", "fuse_swiglu", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp"),
)


def _recognises(document: Mapping[str, Json]) -> bool:
    return str(document.get("model_type")) in _MIXERS


def _model_config(fields: Fields) -> ModelConfig:
    fields.harmless(*_HARMLESS)
    fields.only("norm_first", True, why="statewell's layers norm before they mix")
    kind = fields.text("model_type")
    read_mixer, architecture, depth = _MIXERS[kind]
    layers = fields.whole("num_hidden_layers", default=depth, highest=MOST_LAYERS)
    mlp = MLPSpec(width=_inner_width(fields), activation=SwiGLU())
    mixers = _with_attention(fields, (read_mixer(fields),) * layers)
    return ModelConfig(
        name="fla",
        architecture=architecture,
        vocab=fields.whole("vocab_size", default=32000),
        width=_width(fields),
        layers=tuple(LayerSpec(mixer=mixer, ffn=mlp) for mixer in mixers),
        stream=_stream(fields),
        norm=RMSNormSpec(eps=fields.number("norm_eps", default=1e-6)),
        tied=fields.flag("tie_word_embeddings", default=False),
        init_std=fields.number("initializer_range", default=0.02),
        storage=storage(fields, fp32=("A_log", "dt_bias")),
    )


def _width(fields: Fields) -> int:
    return fields.whole("hidden_size", default=2048)


def _inner_width(fields: Fields) -> int:
    activation = fields.text("hidden_act", default="swish")
    if activation not in ("swish", "silu"):
        fields.refuse("hidden_act", f"is {activation!r}; statewell's fla models have 'swish'")
    given, ratio = fields.optional_whole("intermediate_size"), fields.number("hidden_ratio", default=4.0)
    if given is not None:
        return given
    inner = int(_width(fields) * ratio * 2 / 3)
    if inner < 1:
        fields.refuse("hidden_ratio", f"is {ratio}; with it the network has no width")
    return -(-inner // MLP_MULTIPLE) * MLP_MULTIPLE


def _stream(fields: Fields) -> StreamSpec:
    size = fields.optional_whole("attnres_block_size")
    if size is None:
        return PlainStreamSpec()
    if size == 1:
        return AttnResSpec(group=1, unit="sublayers")
    if size % 2:
        fields.refuse("attnres_block_size", f"is {size}; it counts sublayers, of which a layer has two: even, or 1")
    return AttnResSpec(group=size // 2)


def _with_attention(fields: Fields, mixers: tuple[MixerSpec, ...]) -> tuple[MixerSpec, ...]:
    """The mixers, those that `attn` names replaced by rotary attention."""
    if not fields.holds("attn"):
        fields.harmless("attn")
        return mixers
    attn, width = fields.section("attn"), _width(fields)
    chosen = attn.optional_list(int, "layers")
    heads = attn.whole("num_heads")
    if chosen is None or not all(0 <= index < len(mixers) for index in chosen):
        attn.refuse("layers", f"must be a list of layers from 0 to {len(mixers) - 1}")
    if width % heads:
        attn.refuse("num_heads", f"is {heads}; a width of {width} does not divide by it")
    attn.only("window_size", why="statewell's attention sees all earlier tokens, without a window")
    spec = RotaryAttentionSpec(
        heads=heads,
        kv_heads=attn.whole("num_kv_heads", default=heads),
        head_dim=width // heads,
        rotary_dim=width // heads,
        theta=attn.number("rope_theta", default=10000.0),
        bias=attn.flag("qkv_bias", default=False),
    )
    return tuple(spec if index in chosen else mixer for index, mixer in enumerate(mixers))


def _one_of(fields: Fields, name: str, default: str, known: tuple[str, ...]) -> str:
    value = fields.text(name, default=default)
    if value not in known:
        fields.refuse(name, f"is {value!r}; statewell offers {', '.join(known)}")
    return value


def _head(fields: Fields, ratio: str, heads: int) -> int:
    """The width of one of `heads` heads that together have `ratio` times the model's."""
    total = int(_width(fields) * fields.number(ratio, default=1.0))
    if total < 1 or total % heads:
        fields.refuse(ratio, f"makes {total} channels, which {heads} heads do not divide into")
    return total // heads


def _expanded(fields: Fields, head_dim: int, default: float) -> int:
    """A value head's width: `expand_v` times a key head's."""
    dim = int(head_dim * fields.number("expand_v", default=default))
    if dim < 1:
        fields.refuse("expand_v", f"makes value heads of {dim} channels")
    return dim


def _conv(fields: Fields) -> tuple[int | None, bool]:
    """Taps of the short convolutions, or None, and whether they have a bias."""
    taps, bias = fields.whole("conv_size", default=4), fields.flag("conv_bias", default=False)
    return (taps, bias) if fields.flag("use_short_conv", default=True) else (None, False)


def _linear(fields: Fields) -> LinearSpec:
    heads = fields.whole("num_heads", default=4)
    kept = fields.optional_whole("num_kv_heads")
    feature_map = _one_of(fields, "feature_map", "elementwise_product", tuple(FEATURES))
    tied = fields.flag("tie_feature_map_qk", default=False)
    return LinearSpec(
        heads=heads,
        key_dim=_head(fields, "expand_k", heads),
        value_dim=_head(fields, "expand_v", heads),
        kv_heads=None if kept == heads else kept,
        feature_map=feature_map,  # type: ignore[arg-type] - one of FEATURES
        tied_maps=tied and feature_map in LEARNED_MAPS,  # without weights there is nothing to tie
        norm_q=fields.flag("norm_q", default=False),
        norm_k=fields.flag("norm_k", default=False),
        normalize=fields.flag("norm_feature_map", default=False),
        norm_weight=fields.flag("elementwise_affine", default=True),
    )


def _delta(fields: Fields) -> DeltaSpec:
    heads = fields.whole("num_heads", default=16)
    conv, conv_bias = _conv(fields)
    return DeltaSpec(
        heads=heads,
        key_dim=_head(fields, "expand_k", heads),
        value_dim=_head(fields, "expand_v", heads),
        conv=conv,
        conv_bias=conv_bias,
        beta=fields.flag("use_beta", default=True),
        neg_eigval=fields.flag("allow_neg_eigval", default=False),
        gate=fields.flag("use_gate", default=False),
        qk_activation=_one_of(fields, "qk_activation", "silu", QK_ACTIVATIONS),  # type: ignore[arg-type]
        qk_norm=_one_of(fields, "qk_norm", "l2", QK_NORMS),  # type: ignore[arg-type]
    )


def _gated_delta(fields: Fields) -> GatedDeltaSpec:
    heads, head_dim = fields.whole("num_heads", default=6), fields.whole("head_dim", default=256)
    conv, conv_bias = _conv(fields)
    return GatedDeltaSpec(
        heads=heads,
        value_heads=fields.whole("num_v_heads", default=heads),
        key_dim=head_dim,
        value_dim=_expanded(fields, head_dim, 2.0),
        conv=conv,
        conv_bias=conv_bias,
        neg_eigval=fields.flag("allow_neg_eigval", default=False),
        gate=fields.flag("use_gate", default=True),
    )


def _kda(fields: Fields) -> KDASpec:
    heads, head_dim = fields.whole("num_heads", default=16), fields.whole("head_dim", default=128)
    conv, conv_bias = _conv(fields)
    value_heads, bound = fields.optional_whole("num_v_heads"), fields.optional_number("lower_bound")
    # the bound alone decides the gate's form; safe_gate lets fla's kernel count on it
    if fields.flag("safe_gate", default=False) and bound is None:
        fields.refuse("lower_bound", "is missing, and safe_gate needs one, below 0")
    return KDASpec(
        heads=heads,
        value_heads=None if value_heads == heads else value_heads,
        key_dim=head_dim,
        value_dim=_expanded(fields, head_dim, 1.0),
        conv=conv,
        conv_bias=conv_bias,
        neg_eigval=fields.flag("allow_neg_eigval", default=False),
        lower_bound=bound,
        gate_bias=True,
    )


# fla's name -> how its mixer is read, our architecture, fla's default depth
_MIXERS: dict[str, tuple[Callable[[Fields], MixerSpec], str, int]] = {
    "linear_attn": (_linear, "linear_attention", 24),
    "delta_net": (_delta, "deltanet", 24),
    "gated_deltanet": (_gated_delta, "gated_deltanet", 21),
    "kda": (_kda, "kda", 24),
}

FAMILY = Family(
    name="fla",
    architectures=tuple(architecture for _, architecture, _ in _MIXERS.values()),
    recognises=_recognises,
    model_config=_model_config,
    config_json=config_json,
)
