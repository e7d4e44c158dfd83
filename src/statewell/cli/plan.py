"""`statewell plan`: weights and memory of anything that has a description, without torch."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from statewell.cli.terminal import JsonFlag, print_json
from statewell.config.numbers import format_bytes, format_count, parse_count
from statewell.plan import Plan, PlannedLayer
from statewell.plan import plan as make_plan
from statewell.plan.fit import Fit

EXAMPLE = "statewell plan kimi-k3 --context 1Mi --device-memory 80Gi"


def plan(
    model: Annotated[str, typer.Argument(help="A released preset such as kimi-k3, or ARCH:SIZE such as kimi_k3:nano.")],
    context: Annotated[
        str | None,
        typer.Option(help="Tokens each row holds, such as 32k or 1Mi; default: the model's own limit."),
    ] = None,
    rows: Annotated[int, typer.Option(help="Conversations held at once.")] = 1,
    weights_dtype: Annotated[
        str | None, typer.Option(help="fp64, fp32, bf16, fp16 or mxfp4; default: as released.")
    ] = None,
    cache_dtype: Annotated[str, typer.Option(help="Dtype of growing caches and convolution tails.")] = "bf16",
    state_dtype: Annotated[str, typer.Option(help="Dtype of matrix states.")] = "fp32",
    device_memory: Annotated[
        str | None, typer.Option(help="Bytes of the device, such as 80Gi: what fits on it?")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Weights and memory of a model, to the byte, before anything is downloaded or allocated."""
    planned = make_plan(
        model,
        context=None if context is None else parse_count(context),
        rows=rows,
        weights_dtype=weights_dtype,
        cache_dtype=cache_dtype,
        state_dtype=state_dtype,
        device_memory=None if device_memory is None else parse_count(device_memory),
    )
    if json:
        print_json(planned.to_json())
    else:
        typer.echo("\n".join(describe(planned)))


def describe(planned: Plan) -> list[str]:
    """The plan as lines for a person."""
    memory, parameters, weights = planned.memory, planned.parameters, planned.weights
    rows = "1 row" if memory.rows == 1 else f"{memory.rows:,} rows"
    times = f"{_times(parameters.times_gpt2)} GPT-2 small"
    return [
        planned.model,
        f"  parameters   {parameters.total:>25,}   ({format_count(parameters.total)}; {times})",
        f"  active       {parameters.active:>25,}   ({format_count(parameters.active)} per token)",
        f"  weights      {weights.bytes:>25,} B ({format_bytes(weights.bytes)}, {weights.dtype})",
        f"  memory of {rows} at {memory.context:,} tokens (cache {memory.cache_dtype}, state {memory.state_dtype})",
        f"    fixed      {memory.fixed_bytes:>25,} B per row ({format_bytes(memory.fixed_bytes)})",
        f"    growing    {memory.bytes_per_token:>25,} B per row and token",
        f"    used       {memory.used_bytes:>25,} B ({format_bytes(memory.used_bytes)})",
        f"    reserved   {memory.reserved_bytes:>25,} B ({format_bytes(memory.reserved_bytes)}, pages of 128 tokens)",
        "  layers",
        *_layer_lines(planned.layers),
        *_limit_lines(planned),
        *_fit_lines(planned.fits, rows),
    ]


def _limit_lines(planned: Plan) -> list[str]:
    if not planned.beyond_model_limit:
        return []
    asked, limit = planned.memory.context, planned.limit
    return [f"  note: {asked:,} tokens are past the model's own limit of {limit:,}; planned all the same."]


def _fit_lines(fits: Fit | None, rows: str) -> list[str]:
    if fits is None:
        return []
    context = "no limit" if fits.largest_context is None else f"{fits.largest_context:,} tokens"
    most = "no limit" if fits.most_rows is None else f"{fits.most_rows:,}"
    answer = "yes" if fits.yes else "no"
    return [f"  fits: {answer}; largest context at {rows}: {context}; most rows at this context: {most}"]


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} x" if ratio >= 10 else f"{ratio:.3g} x"


def _layer_lines(layers: tuple[PlannedLayer, ...]) -> list[str]:
    """One line per kind of layer, in the order of their first."""
    counts = Counter((layer.mixer, layer.ffn, layer.fixed_bytes, layer.bytes_per_token) for layer in layers)
    return [
        f"    {count:>4} x {mixer} + {ffn}: {format_bytes(fixed)} fixed, {growing:,} B per token"
        for (mixer, ffn, fixed, growing), count in counts.items()
    ]
