"""The tensors of every kind of feed-forward network, as `models/ffn` names them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch

from statewell.config.layers import FFNSpec, LatentMoESpec, MLPSpec, MoESpec
from statewell.errors import ConfigError
from statewell.plan.tensors import Weight, linear


def _glu(path: str, width: int, inp: int, out: int) -> Iterator[Weight]:
    yield from linear(f"{path}gate_proj", width, inp)
    yield from linear(f"{path}up_proj", width, inp)
    yield from linear(f"{path}down_proj", out, width)


@singledispatch
def ffn(spec: FFNSpec, D: int) -> Iterator[Weight]:
    """The tensors of the network `spec`, over a stream of D channels."""
    raise ConfigError(f"no weights are known for a {type(spec).__name__}; register it in plan/ffn_weights.py.")


@ffn.register
def _(spec: MLPSpec, D: int) -> Iterator[Weight]:
    if spec.activation.gated:
        yield from _glu("", spec.width, D, D)
    else:
        yield from linear("up_proj", spec.width, D, spec.bias)
        yield from linear("down_proj", D, spec.width, spec.bias)


def _experts(spec: MoESpec | LatentMoESpec, D: int, inner: int) -> Iterator[Weight]:
    yield Weight("router.weight", (spec.experts, D))
    if isinstance(spec, LatentMoESpec) or spec.scores == "sigmoid":
        yield Weight("router.correction_bias", (spec.experts,))
    yield Weight("experts.w1", (spec.experts, spec.width, inner), spec.top_k)
    yield Weight("experts.w3", (spec.experts, spec.width, inner), spec.top_k)
    yield Weight("experts.w2", (spec.experts, inner, spec.width), spec.top_k)
    yield from _glu("shared.", spec.shared_width, D, D)


@ffn.register
def _(spec: MoESpec, D: int) -> Iterator[Weight]:
    yield from _experts(spec, D, D)
    if spec.shared_gate:
        yield from linear("shared_gate", 1, D)


@ffn.register
def _(spec: LatentMoESpec, D: int) -> Iterator[Weight]:
    yield from linear("latent_down_proj", spec.latent, D)
    yield from _experts(spec, D, spec.latent)
    yield Weight("latent_norm.weight", (spec.latent,))
    yield from linear("latent_up_proj", D, spec.latent)
