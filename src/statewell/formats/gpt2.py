"""GPT-2's config.json. Source: the `openai-community` configs and transformers' GPT2Config."""

from __future__ import annotations

from collections.abc import Mapping

from statewell.config.layers import GELU, LayerNormSpec, LayerSpec, MLPSpec, ModelConfig, PlainStreamSpec
from statewell.config.load import Json
from statewell.config.mixers import AttentionSpec
from statewell.errors import RequestError
from statewell.formats.family import Family
from statewell.formats.fields import MOST_LAYERS, Fields
from statewell.formats.storage import storage

_HARMLESS = (
    "n_ctx",
    *("attn_pdrop", "embd_pdrop", "resid_pdrop"),  # dropout: this trainer has none
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
    "reorder_and_upcast_attn",  # where fp16 scores are rounded; ours are at least fp32
    "gradient_checkpointing",
)


def _recognises(document: Mapping[str, Json]) -> bool:
    return document.get("model_type") == "gpt2"


def _model_config(fields: Fields) -> ModelConfig:
    fields.harmless(*_HARMLESS)
    fields.only("activation_function", "gelu_new", "gelu_pytorch_tanh", why="statewell's GPT-2 has gelu_new")
    fields.only("scale_attn_weights", True, why="statewell always scales scores by the head's width")
    fields.only("scale_attn_by_inverse_layer_idx", False, why="statewell does not scale scores by layer")
    fields.only("add_cross_attention", False, why="statewell has decoders only")
    width, heads = fields.whole("n_embd", "hidden_size"), fields.whole("n_head", "num_attention_heads")
    if width % heads:
        fields.refuse("n_head", f"is {heads}, which does not divide n_embd = {width}")
    layer = LayerSpec(
        mixer=AttentionSpec(heads=heads, head_dim=width // heads, bias=True),
        ffn=MLPSpec(width=fields.optional_whole("n_inner") or 4 * width, activation=GELU(), bias=True),
    )
    positions = fields.whole("n_positions", "max_position_embeddings")
    return ModelConfig(
        name="gpt2",
        architecture="gpt2",
        vocab=fields.whole("vocab_size"),
        width=width,
        layers=(layer,) * fields.whole("n_layer", "num_hidden_layers", highest=MOST_LAYERS),
        stream=PlainStreamSpec(),
        norm=LayerNormSpec(eps=fields.number("layer_norm_epsilon", default=1e-5)),
        positions=positions,
        context=positions,
        tied=fields.flag("tie_word_embeddings", default=True),
        init_std=fields.number("initializer_range", default=0.02),
        storage=storage(fields),
    )


def _config_json(config: ModelConfig) -> dict[str, Json]:
    layer, norm = config.layers[0], config.norm
    if not isinstance(layer.mixer, AttentionSpec) or not isinstance(layer.ffn, MLPSpec):
        raise RequestError("GPT-2's layers are attention and a dense network.")
    if not isinstance(norm, LayerNormSpec) or config.positions is None:
        raise RequestError("GPT-2 has LayerNorm and a table of positions.")
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab,
        "n_positions": config.positions,
        "n_ctx": config.positions,
        "n_embd": config.width,
        "n_layer": len(config.layers),
        "n_head": layer.mixer.heads,
        "n_inner": layer.ffn.width,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": norm.eps,
        "initializer_range": config.init_std,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": config.tied,
    }


FAMILY = Family(
    name="gpt2",
    architectures=("gpt2",),
    recognises=_recognises,
    model_config=_model_config,
    config_json=_config_json,
)
