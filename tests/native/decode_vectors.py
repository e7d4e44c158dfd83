"""Stored vectors of what decodes: one token of many rows, one query over kept tokens, products with packed matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from statewell.kernels.reference import attention, conv, mxfp4, recurrent
from tests.native.draw import RULES, Draw, Vectors, number, recurrent_inputs, whole

STEPS: dict[str, Callable] = {
    "additive": lambda q, k, v, scale, state: recurrent.linear_step(q, k, v, scale, state, False),
    "delta": recurrent.delta_step,
    "gated_delta": recurrent.gated_delta_step,
    "kda": recurrent.kda_step,
}


def step(draw: Draw, rule: str, N: int, H: int, HV: int, K: int, V: int) -> Vectors:
    """One token of N rows."""
    inputs, state = recurrent_inputs(draw, rule, N, H, HV, K, V, strong=False), draw.normal(N, HV, K, V)
    o, final = STEPS[rule](*(x.double() for x in inputs.values()), 0.3, state.double())
    held = {"rule": whole(RULES.index(rule)), "gap": whole(1), "scale": number(0.3), "eps": number(0.0)}
    return {**inputs, **held, "state": state, "o": o, "final": final}


def normalised_step(draw: Draw, N: int, H: int, HV: int, K: int, V: int) -> Vectors:
    """One token of N rows of normalised linear attention."""
    inputs = {"q": draw.positive(N, H, K), "k": draw.positive(N, H, K), "v": draw.normal(N, HV, V)}
    state, z = draw.normal(N, HV, K, V), draw.uniform(N, HV, K)
    o, (final, final_z) = recurrent.linear_step(
        *(x.double() for x in inputs.values()), 0.3, (state.double(), z.double()), True
    )
    held = {"rule": whole(0), "gap": whole(1), "scale": number(0.3), "eps": number(recurrent.NORMALISER_EPS)}
    return {**inputs, **held, "state": state, "z": z, "o": o, "final": final, "final_z": final_z}


def conv_step(draw: Draw, N: int, D: int, W: int) -> Vectors:
    x, weight, tails = draw.normal(N, D), draw.normal(D, W), draw.normal(N, W - 1, D)
    y, final = conv.short_conv(x[:, None].double(), weight.double(), tails.double(), None)
    return {"x": x, "weight": weight, "tails": tails, "gap": whole(2), "y": y[:, 0], "final": final}


def attend(
    draw: Draw, table: Sequence[Sequence[int]], lengths: Sequence[int], tokens: int, widths: Sequence[int]
) -> Vectors:
    """One query of each row over its pages of `tokens`; `table` names them, -1 past a row's last.

    widths: H, Hk, K, V, P; V 0: absorbed, where the keys are the values. P numbers more are shared by the heads.
    """
    (H, Hk, K, V, P), B, count = widths, len(lengths), 1 + max(map(max, table))
    q, k = draw.normal(B, H, K + P), draw.normal(count, tokens, Hk, K)
    shared, v = draw.normal(count, tokens, P), draw.normal(count, tokens, Hk, V) if V else k
    keys = torch.cat([k, shared[:, :, None].expand(-1, -1, Hk, -1)], -1)
    o = []
    for query, row, length in zip(q, table, lengths, strict=True):
        held = [kept[[page for page in row if page >= 0]].flatten(0, 1)[None, :length].double() for kept in (keys, v)]
        o.append(attention.attention_direct(query[None, None].double(), *held, 0.4)[0, 0])
    kept = {"k": k, **({"v": v} if V else {}), **({"shared": shared} if P else {})}
    pages, sizes = torch.tensor(table), {"lengths": whole(*lengths), "gap": whole(2)}
    return {"q": q, **kept, **sizes, "pages": pages, "o": torch.stack(o), "scale": number(0.4)}


def packed(draw: Draw, count: int, out: int, width: int, tokens: int) -> Vectors:
    """`count` matrices [out, width] of bytes and their products with some tokens."""
    matrices = (256 * draw.uniform(count, out, width // 2)).to(torch.uint8)
    scale = (118 + 14 * draw.uniform(count, out, width // 32)).to(torch.uint8)
    scale[0, 0] = 0  # 2^-127 has no exponent of its own
    x, w = draw.normal(tokens, width), mxfp4.mxfp4_dequantise(matrices, scale, torch.float64)
    return {"x": x, "packed": matrices, "scale": scale, "y": x.double() @ w.mT}


def unpacked(draw: Draw, out: int, width: int) -> Vectors:
    """One matrix, and its numbers."""
    held = packed(draw, 1, out, width, 1)
    matrix, scale = held["packed"][0], held["scale"][0]
    return {"packed": matrix, "scale": scale, "w": mxfp4.mxfp4_dequantise(matrix, scale, torch.float64)}


def decode() -> dict[str, Vectors]:
    """Odd widths again; rows share pages and end inside them; matrices of less than a vector and more than a strip."""
    made: dict[str, Vectors] = {}
    for i, rule in enumerate(RULES):
        N, V = (1, 149) if rule == "kda" else (3, 37)
        made[f"step/{rule}"] = step(Draw(20 + i), rule, N, 1, 2, 5, V)
        made[f"step/{rule} heads"] = step(Draw(34 + i), rule, 2, 2, 4, 3, 2)
    made["step/normalised"] = normalised_step(Draw(100), 3, 2, 4, 19, 5)
    for W, D in ((2, 9), (3, 3), (4, 37)):
        made[f"conv_step/W{W}"] = conv_step(Draw(100 + W), 5, D, W)
    alone = [[0], [1], [2]]
    made["attend/heads"] = attend(Draw(95), alone, (1, 261, 3), 261, (3, 1, 5, 3, 0))
    made["attend/groups"] = attend(Draw(96), [[0]], (6,), 6, (6, 2, 18, 37, 0))
    made["attend/absorbed"] = attend(Draw(97), alone, (67, 66, 1), 67, (5, 1, 9, 0, 3))
    # two rows begin with the same pages; the first ends inside the one it shares, the last fills its own
    table, lengths = [[0, 1, -1, -1, -1], [2, -1, -1, -1, -1], [0, 1, 3, 4, 5]], (65, 1, 320)
    made["attend/pages"] = attend(Draw(98), table, lengths, 64, (4, 2, 3, 2, 0))
    made["attend/pages, absorbed"] = attend(Draw(99), table, lengths, 64, (3, 1, 5, 0, 2))
    made["attend/pages, a shared part"] = attend(Draw(105), [[0, 1], [1, 2]], (70, 128), 64, (2, 1, 2, 3, 3))
    sizes = ((2, 3, 32, 1), (1, 5, 96, 7), (1, 7, 160, 2), (2, 70, 288, 3), (1, 2, 4096 + 224, 1))
    for i, (count, out, width, tokens) in enumerate(sizes):
        made[f"products/{out}x{width}"] = packed(Draw(110 + i), count, out, width, tokens)
    made["unpack/3x96"] = unpacked(Draw(115), 3, 96)
    made["unpack/1x4320"] = unpacked(Draw(116), 1, 4096 + 224)
    return made
