"""What a model weighs and what it remembers, worked out from its description alone. Imports no torch.

Start at `plan`; the arithmetic is in `weights` (parameters, bytes as stored), `flops` and `fit`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from statewell import architectures
from statewell.config.layers import ModelConfig
from statewell.errors import LimitError
from statewell.plan import weights as weigh
from statewell.plan.fit import Fit, fit

DEFAULT_CONTEXT = 2**20  # where the model has no limit of its own
GPT2_SMALL_PARAMETERS = weigh.total(architectures.RELEASED["gpt2"])


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """total: everything stored. active: what one token uses. times_gpt2: total over GPT-2 small's total."""

    total: int
    active: int
    times_gpt2: float


@dataclass(frozen=True, kw_only=True)
class Weights:
    """dtype: "as released", or the one asked for. bytes: of all weights, vision side left out."""

    dtype: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class PlannedMemory:
    """fixed_bytes and bytes_per_token are per row; used_bytes and reserved_bytes are for all rows at `context`."""

    cache_dtype: str
    state_dtype: str
    fixed_bytes: int
    bytes_per_token: int
    context: int
    rows: int
    used_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, kw_only=True)
class PlannedLayer:
    """One layer: its mixer, its FFN, and the bytes a row of its memory takes."""

    index: int
    mixer: str
    ffn: str
    fixed_bytes: int
    bytes_per_token: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything `statewell plan` prints; `to_json()` has the keys of `--json`."""

    model: str
    parameters: Parameters
    weights: Weights
    memory: PlannedMemory
    beyond_model_limit: bool
    limit: int | None
    layers: tuple[PlannedLayer, ...]
    fits: Fit | None

    def to_json(self) -> dict[str, object]:
        """Plain values, ready for json.dumps."""
        document = asdict(self)
        document["layers"] = [asdict(layer) for layer in self.layers]
        return document


def plan(
    model: str | ModelConfig,
    context: int | None = None,
    rows: int = 1,
    weights_dtype: str | None = None,
    cache_dtype: str = "bf16",
    state_dtype: str = "fp32",
    device_memory: int | None = None,
) -> Plan:
    """Plan `rows` conversations of `context` tokens.

    context: tokens a row holds; None is the model's own limit, or 1,048,576 without one. weights_dtype: None is as
    released. device_memory: bytes; with it `fits` says what would. A context past the model's limit is still planned,
    with `beyond_model_limit` set. Raises RequestError or ConfigError for an unknown model or dtype, LimitError for a
    negative context or no rows.
    """
    config = architectures.resolve(model) if isinstance(model, str) else model
    tokens = context if context is not None else config.context or DEFAULT_CONTEXT
    if tokens < 0 or rows < 1:
        raise LimitError(f"{rows:,} rows of {tokens:,} tokens cannot be planned; ask for at least 1 row of 0 tokens.")
    memory = config.memory(cache_dtype, state_dtype)
    weights_bytes = weigh.stored_bytes(config, weights_dtype)
    total = weigh.total(config)
    return Plan(
        model=config.name,
        parameters=Parameters(total=total, active=weigh.active(config), times_gpt2=total / GPT2_SMALL_PARAMETERS),
        weights=Weights(dtype=weights_dtype or "as released", bytes=weights_bytes),
        memory=PlannedMemory(
            cache_dtype=cache_dtype,
            state_dtype=state_dtype,
            fixed_bytes=memory.fixed_bytes,
            bytes_per_token=memory.bytes_per_token,
            context=tokens,
            rows=rows,
            used_bytes=memory.used([tokens] * rows),
            reserved_bytes=memory.reserved([tokens] * rows),
        ),
        beyond_model_limit=config.context is not None and tokens > config.context,
        limit=config.context,
        layers=tuple(_layer(config, index, cache_dtype, state_dtype) for index in range(len(config.layers))),
        fits=None if device_memory is None else fit(memory, weights_bytes, device_memory, rows, tokens),
    )


def _layer(config: ModelConfig, index: int, cache_dtype: str, state_dtype: str) -> PlannedLayer:
    layer = config.layers[index]
    memory = layer.mixer.memory(cache_dtype, state_dtype)
    return PlannedLayer(
        index=index,
        mixer=layer.mixer.label,
        ffn=layer.ffn.label,
        fixed_bytes=memory.fixed_bytes,
        bytes_per_token=memory.bytes_per_token,
    )
