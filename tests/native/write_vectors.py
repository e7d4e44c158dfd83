"""Writes the vectors of the C++ program that checks the kernels without Python (main.cpp beside this file):

    python -m tests.native.write_vectors

Inputs are float32 or bytes, what must come out is float64, from the reference kernels and their gradients. Every
tensor is named family/case/name; gradients begin with d_, the gradients that come in do not. `limits` are those of
tests/tolerances.py. What decodes is in decode_vectors.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from statewell.kernels.reference import chunkwise_linear, conv, depth, moe, parts, recurrent
from tests.native.decode_vectors import decode
from tests.native.draw import RULES, Draw, Vectors, number, recurrent_inputs, whole
from tests.tolerances import LIMITS

PATH = Path(__file__).parents[1] / "golden" / "native" / "kernels.safetensors"


def with_gradients(run: Callable, inputs: dict[str, Tensor], weights: Sequence[Tensor]) -> tuple[list[Tensor], Vectors]:
    """What `run` gives on float64 copies of the inputs, and d_NAME of each for the loss sum(weights * results)."""
    leaves = {name: x.double().requires_grad_() for name, x in inputs.items()}
    made = run(*leaves.values())
    made = [made] if isinstance(made, Tensor) else list(made)
    loss = torch.stack([(w.double() * y).sum() for w, y in zip(weights, made, strict=True)]).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return [y.detach() for y in made], {f"d_{name}": d for name, d in zip(leaves, gradients, strict=True)}


FORMS: dict[str, Callable] = {
    "additive": lambda q, k, v, scale, state, cu: recurrent.linear_recurrent(q, k, v, scale, state, False, cu),
    "delta": recurrent.delta_recurrent,
    "gated_delta": recurrent.gated_delta_recurrent,
    "kda": recurrent.kda_recurrent,
}


def delta(draw: Draw, rule: str, bounds: Sequence[int], H: int, HV: int, K: int, V: int, **held: int | bool) -> Vectors:
    """A recurrence over packed segments; started: states are carried in and their ends have a gradient."""
    started, split = bool(held["started"]), int(held["parts"])
    T, N = bounds[-1], len(bounds) - 1
    inputs = recurrent_inputs(draw, rule, T, H, HV, K, V, strong=not started)
    tensors = {**inputs, **({"initial": draw.normal(N, HV, K, V)} if started else {})}
    do, dfinal = draw.normal(T, HV, V), draw.normal(N, HV, K, V) if started else torch.zeros(N, HV, K, V)

    def run(*x: Tensor) -> tuple[Tensor, Tensor]:
        state = x[len(inputs)] if started else None
        o, final = FORMS[rule](*(y[None] for y in x[: len(inputs)]), 0.3, state, whole(*bounds))
        return o[0], final

    (o, final), gradients = with_gradients(run, tensors, (do, dfinal))
    return {
        **tensors,
        **gradients,
        **{"o": o, "final": final, "do": do, "scale": number(0.3), "bounds": whole(*bounds)},
        **{"rule": whole(RULES.index(rule)), "parts": whole(split), "gap": whole(3 if started else 0)},
        **({"dfinal": dfinal} if started else {}),
    }


def linear(draw: Draw, bounds: Sequence[int], H: int, HV: int, K: int, V: int, started: bool) -> Vectors:
    """Normalised linear attention over packed segments."""
    T, N = bounds[-1], len(bounds) - 1
    inputs = {"q": draw.positive(T, H, K), "k": draw.positive(T, H, K), "v": draw.normal(T, HV, V)}
    states = {"initial": draw.normal(N, HV, K, V), "initial_z": draw.uniform(N, HV, K)} if started else {}
    do, dfinal_z = draw.normal(T, HV, V), draw.normal(N, HV, K) if started else torch.zeros(N, HV, K)

    def run(q: Tensor, k: Tensor, v: Tensor, *state: Tensor) -> tuple[Tensor, Tensor]:
        held = (state[0], state[1]) if started else None
        o, (_, z) = chunkwise_linear.linear_chunk(q[None], k[None], v[None], 0.3, held, True, whole(*bounds))
        return o[0], z

    (o, z), gradients = with_gradients(run, inputs | states, (do, dfinal_z))
    gradients.pop("d_initial", None)  # checked with the additive rule
    return {
        **inputs,
        **states,
        **gradients,
        **{"o": o, "final_z": z, "do": do, "scale": number(0.3), "eps": number(recurrent.NORMALISER_EPS)},
        **{"rule": whole(0), "parts": whole(1), "gap": whole(2), "bounds": whole(*bounds)},
        **({"dfinal_z": dfinal_z} if started else {}),
    }


def norm(draw: Draw, M: int, D: int, form: str) -> Vectors:
    """form: l2, rms, or the gate's activation."""
    inputs, dy, eps = {"x": draw.normal(M, D)}, draw.normal(M, D), 1e-6 if form == "l2" else 1e-5
    if form != "l2":
        inputs["weight"] = draw.normal(D)
    if form in ("sigmoid", "silu"):
        inputs["gate"] = draw.normal(M, D, scale=3.0)
    runs: dict[str, Callable] = {
        "l2": lambda x: parts.l2norm(x, eps),
        "rms": lambda x, weight: parts.rms_norm(x, weight, eps),
        "sigmoid": lambda x, weight, gate: parts.gated_rms_norm(x, weight, gate, eps, torch.sigmoid),
        "silu": lambda x, weight, gate: parts.gated_rms_norm(x, weight, gate, eps, F.silu),
    }
    (y,), gradients = with_gradients(runs[form], inputs, (dy,))
    share = 1.0 if form == "l2" else 1.0 / D
    return {
        **inputs,
        **gradients,
        **{"y": y, "dy": dy, "share": number(share), "eps": number(eps), "silu": whole(int(form == "silu"))},
    }


def pair(draw: Draw, count: int, run: Callable, **numbers: float) -> Vectors:
    """A product of two inputs, one in (-20, 20)."""
    inputs = {"gate": draw.normal(count, scale=5.0), "up": draw.normal(count, scale=20.0)}
    dout = draw.normal(count)
    (out,), gradients = with_gradients(run, inputs, (dout,))
    return {**inputs, **gradients, "out": out, "dout": dout, **{name: number(x) for name, x in numbers.items()}}


def situ(draw: Draw, count: int, linear_beta: float | None) -> Vectors:
    return pair(draw, count, lambda g, u: parts.situ(g, u, 4.0, linear_beta), beta=4.0, linear_beta=linear_beta or 0.0)


def gate(draw: Draw, M: int, HV: int, K: int, lower_bound: float) -> Vectors:
    """lower_bound 0: the softplus form."""
    inputs = {"z": draw.normal(M, HV, K, scale=2.0), "A_log": draw.normal(HV), "dt_bias": draw.normal(HV, K)}
    dg = draw.normal(M, HV, K)
    run = parts.decay_gate if lower_bound == 0 else lambda z, A, b: parts.bounded_gate(z, A, b, lower_bound)
    (g,), gradients = with_gradients(run, inputs, (dg,))
    return {**inputs, **gradients, "g": g, "dg": dg, "lower_bound": number(lower_bound)}


def short_conv(draw: Draw, bounds: Sequence[int], D: int, W: int) -> Vectors:
    T, N = bounds[-1], len(bounds) - 1
    inputs = {"x": draw.normal(T, D), "weight": draw.normal(D, W), "history": draw.normal(N, W - 1, D)}
    dy = draw.normal(T, D)
    run = lambda x, weight, history: conv.short_conv(x[None], weight, history, whole(*bounds))[0][0]  # noqa: E731
    (y,), gradients = with_gradients(run, inputs, (dy,))
    return {**inputs, **gradients, "y": y, "dy": dy, "bounds": whole(*bounds)}


def attention_residuals(draw: Draw, S: int, M: int, D: int) -> Vectors:
    inputs = {"query": draw.normal(D)} | {f"source_{s}": draw.normal(M, D) for s in range(S)}
    dmixed = draw.normal(M, D)
    run = lambda query, *sources: depth.attn_res(sources, torch.ones(D, dtype=query.dtype), query, 1e-5)  # noqa: E731
    (mixed,), gradients = with_gradients(run, inputs, (dmixed,))
    return {**inputs, **gradients, "mixed": mixed, "dmixed": dmixed, "sources": whole(S), "eps": number(1e-5)}


def expert_rows(draw: Draw, M: int, E: int, k: int, D: int) -> Vectors:
    """`made` [M, k, D] is what each choice's expert made of its token; the last expert is never chosen."""
    index = torch.argsort(draw.uniform(M, E - 1), dim=-1)[:, :k].contiguous()
    inputs, x, dmixed = (
        {"made": draw.normal(M, k, D), "weight": draw.uniform(M, k)},
        draw.normal(M, D),
        draw.normal(M, D),
    )
    run = lambda made, weight: (weight[..., None] * made).sum(1)  # noqa: E731
    (mixed,), gradients = with_gradients(run, inputs, (dmixed,))
    return {
        **inputs,
        **gradients,
        **{"x": x, "rows": x.double().repeat_interleave(k, 0), "d_x": inputs["made"].double().sum(1)},
        **{"mixed": mixed, "dmixed": dmixed, "index": index, "experts": whole(E)},
    }


def route(draw: Draw, M: int, E: int, k: int, scaling: float, divide: bool) -> Vectors:
    """Experts 1 and 3 are equal, so that every choice of one is a tie; the last may not be chosen before all others."""
    logits, bias = draw.normal(M, E, scale=2.0), draw.normal(E, scale=0.1)
    logits[:, 3], bias[3], bias[-1] = logits[:, 1], bias[1], -float("inf")
    dweight = draw.normal(M, k)
    index = moe.route(logits.double(), torch.eye(E).double(), bias.double(), k, scaling, divide)[0]
    run = lambda x: moe.route(x, torch.eye(E).double(), bias.double(), k, scaling, divide)[1]  # noqa: E731
    (weight,), gradients = with_gradients(run, {"logits": logits}, (dweight,))
    held = {"scaling": number(scaling), "divide": whole(int(divide and k > 1))}
    return {**gradients, **held, "logits": logits, "bias": bias, "index": index, "weight": weight, "dweight": dweight}


def recurrences() -> dict[str, Vectors]:
    """Widths that leave a rest in every vector and tile; segments of 0, 1 and more tokens than a chunk."""
    packed, made = (0, 3, 3, 4, 37), {}
    wide = {"additive": (19, 17), "delta": (5, 33), "gated_delta": (19, 18), "kda": (70, 25)}  # K, V
    for i, (rule, V) in enumerate(zip(RULES, (3, 9, 7, 11), strict=True)):
        made[f"delta/{rule} packed"] = delta(Draw(i), rule, packed, 1, 2, 5, V, started=True, parts=1)
        split = 1 if rule == "kda" else 2
        made[f"delta/{rule} wide"] = delta(Draw(10 + i), rule, (0, 33), 1, 1, *wide[rule], started=False, parts=split)
    for i, rule in enumerate(RULES):  # two key heads, each for two value heads
        made[f"delta/{rule} heads"] = delta(Draw(30 + i), rule, (0, 2, 4), 2, 4, 3, 1, started=True, parts=1)
    made["linear/heads"] = linear(Draw(38), (0, 2, 4), 2, 4, 3, 2, started=True)
    made["linear/packed"] = linear(Draw(39), packed, 1, 2, 5, 6, started=True)
    made["linear/fresh"] = linear(Draw(29), (0, 9), 1, 1, 19, 3, started=False)
    return made


def pieces() -> dict[str, Vectors]:
    made: dict[str, Vectors] = {}
    norms = {"l2": [(2, 32), (5, 7)], "rms": [(2, 128), (3, 19)], "sigmoid": [(17, 16)], "silu": [(2, 64), (3, 37)]}
    for i, (form, M, D) in enumerate((form, *size) for form, sizes in norms.items() for size in sizes):
        made[f"norm/{form} {M}x{D}"] = norm(Draw(40 + i), M, D, form)
    for i, bound in enumerate((25.0, 1.5, None)):
        made[f"situ/linear_beta {bound}"] = situ(Draw(50 + i), 77, bound)
    made["swiglu/77"] = pair(Draw(53), 77, parts.swiglu)
    for i, (HV, K, bound) in enumerate(((3, 1, 0.0), (2, 5, 0.0), (5, 1, -5.0), (1, 70, -0.5))):
        made[f"gate/HV{HV} K{K} bound {bound}"] = gate(Draw(60 + i), 7 if K == 70 else 31, HV, K, bound)
    for W, D in ((2, 9), (3, 3), (4, 17)):
        made[f"conv/W{W}"] = short_conv(Draw(70 + W), (0, 3, 4, 4, 69), D, W)
    made["depth/2 sources"] = attention_residuals(Draw(80), 2, 11, 8)
    made["depth/5 sources"] = attention_residuals(Draw(81), 5, 3, 21)
    return made


def routing() -> dict[str, Vectors]:
    return {
        "experts/k3": expert_rows(Draw(90), 7, 6, 3, 19),
        "experts/k1": expert_rows(Draw(91), 5, 3, 1, 5),
        "route/divided": route(Draw(92), 9, 7, 3, 1.7, True),
        "route/plain": route(Draw(93), 9, 5, 2, 1.0, False),
        "route/best": route(Draw(94), 9, 5, 1, 2.5, True),
    }


def vectors() -> Vectors:
    """All stored tensors by name."""
    names = {"operation": ("operation", torch.float32), "gradient": ("gradient", torch.float32)}
    cases = {"limits/all": {name: number(LIMITS[key]) for name, key in names.items()}}
    cases |= recurrences() | pieces() | routing() | decode()
    return {f"{case}/{name}": x.contiguous() for case, tensors in cases.items() for name, x in tensors.items()}


if __name__ == "__main__":
    PATH.parent.mkdir(parents=True, exist_ok=True)
    save_file(vectors(), PATH)
    PATH.chmod(0o644)
