"""The checks that `ops.py` makes once per call. Each refusal is one plain sentence: value, limit, way out.

Functions named after a tensor property check one thing; those named after operations check a family and
return `dims`, the widths of one token, which is all the registry may know about sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from statewell.errors import ShapeError
from statewell.kernels.packed import GROUP, ExpertStream, PackedExpert
from statewell.kernels.pages import Kept

LinearState = tuple[Tensor, Tensor] | Tensor
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def floats(op: str, named: dict[str, Tensor | None]) -> None:
    """Every tensor given is floating point and on one device, that of the first; None is skipped."""
    device = None
    for name, tensor in named.items():
        if tensor is None:
            continue
        if not tensor.is_floating_point():
            raise ShapeError(f"{op}: {name} is {tensor.dtype}, a floating-point dtype is needed; call .float() on it.")
        if device is None:
            device = tensor.device
        elif tensor.device != device:
            raise ShapeError(
                f"{op}: {name} is on {tensor.device}, the tensors before it on {device}; move it to {device}."
            )


def rank(op: str, name: str, tensor: Tensor, letters: str) -> None:
    """The tensor has one axis per shape letter."""
    axes = letters.count(",") + 1
    if tensor.dim() != axes:
        raise ShapeError(
            f"{op}: {name} has shape {tuple(tensor.shape)}, {axes} axes [{letters}] are needed; reshape it."
        )


def shape(op: str, name: str, tensor: Tensor, wanted: tuple[int, ...], letters: str) -> None:
    """The tensor has exactly the wanted shape, spelled in letters."""
    if tensor.shape != wanted:
        raise ShapeError(
            f"{op}: {name} has shape {tuple(tensor.shape)}, the other tensors need [{letters}] = {wanted}; "
            f"reshape or rebuild {name}."
        )


def multiple(op: str, many: str, count: int, few: str, unit: int) -> None:
    """Heads of one kind are shared evenly among heads of another."""
    if unit == 0 or count % unit:
        raise ShapeError(f"{op}: {count} {many} heads cannot share {unit} {few} heads; use a multiple of {unit}.")


def segments(op: str, first: Tensor, cu_seqlens: Tensor | None, name: str = "cu_seqlens") -> int:
    """N: the rows of `first` [B, T, ...], or its segments when packed, whose bounds rise from 0 to T."""
    B, T = first.shape[:2]
    if cu_seqlens is None:
        return B
    if B != 1:
        raise ShapeError(f"{op}: {B} rows came with {name}, which needs 1; reshape them to [1, B*T, ...].")
    if cu_seqlens.dtype not in WHOLE or cu_seqlens.dim() != 1 or cu_seqlens.numel() < 2:
        raise ShapeError(
            f"{op}: {name} is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}, whole numbers [N+1] are "
            f"needed, N >= 1; give the start of every segment and the end of the last."
        )
    if cu_seqlens.device.type not in ("cpu", first.device.type):
        raise ShapeError(f"{op}: {name} is on {cu_seqlens.device}, the tensors on {first.device}; move it there.")
    if torch.compiler.is_compiling():
        return cu_seqlens.numel() - 1  # a traced tensor has no values to look at
    bounds = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] != T or any(b < a for a, b in itertools.pairwise(bounds)):
        raise ShapeError(
            f"{op}: {name} goes from {bounds[0]} to {bounds[-1]}, it must rise from 0 to the {T} tokens; "
            f"give the start of every segment and the end of the last."
        )
    return len(bounds) - 1


def key_segments(op: str, q: Tensor, keys: Tensor, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None) -> None:
    """Queries [B, T, ...] are the last of their segment's keys [B, S, ...], so none has fewer keys."""
    pairs = [(q.shape[1], keys.shape[1])]
    if cu_seqlens is None and cu_seqlens_k is not None:
        raise ShapeError(f"{op}: cu_seqlens_k came without cu_seqlens; give the bounds of the queries as well.")
    if cu_seqlens is not None:
        bounds = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
        N, kept = segments(op, q, cu_seqlens), segments(op, keys, bounds, "cu_seqlens_k")
        if kept != N:
            raise ShapeError(f"{op}: {N} segments of queries came with {kept} of keys; give as many of both.")
        pairs = list(zip(cu_seqlens.diff().tolist(), bounds.diff().tolist(), strict=True))
    for t, s in pairs:
        if s < t:
            raise ShapeError(f"{op}: {t} queries came with {s} keys, at least {t} are needed; append their own keys.")


def heads(op: str, lead: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int, int, int]:
    """H, K, HV, V of q, k [lead, H, K] and v [lead, HV, V]; lead is "B, T", or "N" for single tokens."""
    rank(op, "q", q, f"{lead}, H, K")
    rank(op, "v", v, f"{lead}, HV, V")
    (H, K), (HV, V) = q.shape[-2:], v.shape[-2:]
    shape(op, "k", k, tuple(q.shape), f"{lead}, H, K")
    shape(op, "v", v, (*q.shape[:-2], HV, V), f"{lead}, HV, V")
    multiple(op, "value", HV, "query/key", H)
    return H, K, HV, V


def delta(
    op: str, lead: str, inputs: dict[str, Tensor], state: Tensor | None, cu_seqlens: Tensor | None = None
) -> tuple[int, ...]:
    """The delta family: q, k, v, beta, perhaps g (one per key channel in kda alone), perhaps a state."""
    H, K, HV, V = gated(op, lead, inputs)
    floats(op, {**inputs, "state": state})
    N = segments(op, inputs["q"], cu_seqlens)
    if state is not None:
        shape(op, "state", state, (N, HV, K, V), "N, HV, K, V")
    return H, K, HV, V


def delta_in_place(op: str, inputs: dict[str, Tensor], state: Tensor) -> tuple[int, ...]:
    """As `delta` for one token of each of N rows, on a state that holds them among others."""
    H, K, HV, V = gated(op, "N", inputs)
    kept(op, "state", state, (HV, K, V), "M, HV, K, V", inputs)
    return H, K, HV, V


def gated(op: str, lead: str, inputs: dict[str, Tensor]) -> tuple[int, int, int, int]:
    """H, K, HV, V of q, k, v, with beta and perhaps g in the shapes that go with them."""
    q = inputs["q"]
    H, K, HV, V = heads(op, lead, q, inputs["k"], inputs["v"])
    per_head = (*q.shape[:-2], HV)
    if "g" in inputs and op.startswith("kda"):
        shape(op, "g", inputs["g"], (*per_head, K), f"{lead}, HV, K")
    elif "g" in inputs:
        shape(op, "g", inputs["g"], per_head, f"{lead}, HV")
    shape(op, "beta", inputs["beta"], per_head, f"{lead}, HV")
    return H, K, HV, V


def linear(
    op: str,
    lead: str,
    inputs: dict[str, Tensor],
    state: LinearState | None,
    normalize: bool,
    cu_seqlens: Tensor | None = None,
) -> tuple[int, ...]:
    """Linear attention, whose state is the pair (S, z) exactly when normalising."""
    H, K, HV, V = heads(op, lead, inputs["q"], inputs["k"], inputs["v"])
    S, z = (None, None) if state is None else linear_form(op, state, normalize)
    floats(op, {**inputs, "state": S, "z": z})
    N = segments(op, inputs["q"], cu_seqlens)
    if S is not None:
        shape(op, "state", S, (N, HV, K, V), "N, HV, K, V")
    if z is not None:
        shape(op, "z", z, (N, HV, K), "N, HV, K")
    return H, K, HV, V


def linear_in_place(op: str, inputs: dict[str, Tensor], S: Tensor, z: Tensor | None) -> tuple[int, ...]:
    """As `linear` for one token of each of N rows, on a state that holds them among others."""
    H, K, HV, V = heads(op, "N", inputs["q"], inputs["k"], inputs["v"])
    kept(op, "state", S, (HV, K, V), "M, HV, K, V", inputs)
    if z is not None:
        kept(op, "z", z, (HV, K), "M, HV, K", inputs)
        shape(op, "z", z, (S.shape[0], HV, K), "M, HV, K")
    return H, K, HV, V


def linear_form(op: str, state: LinearState, normalize: bool) -> tuple[Tensor, Tensor | None]:
    """S and z, or S alone, as linear attention normalises or not."""
    if isinstance(state, Tensor) == normalize:
        form = "the pair (S, z)" if normalize else "S alone"
        raise ShapeError(f"{op}: with normalize={normalize} the state is {form}, another form came; pass {form}.")
    return (state, None) if isinstance(state, Tensor) else state


def conv_in_place(op: str, x: Tensor, weight: Tensor, state: Tensor) -> tuple[int, int]:
    """A convolution of one token x [N, D] of each of N rows, on tails that hold theirs among others; D and W."""
    rank(op, "x", x, "N, D")
    rank(op, "weight", weight, "D, W")
    D, W = x.shape[1], weight.shape[1]
    shape(op, "weight", weight, (D, max(W, 1)), "D, W")
    kept(op, "state", state, (W - 1, D), "M, W-1, D", {"x": x, "weight": weight})
    return D, W


def required(op: str, state: object) -> None:
    """A single-token operation continues something by definition."""
    if state is None:
        raise ShapeError(f"{op}: no state came, a step continues one; start from zeros of shape [N, HV, K, V].")


def kept(op: str, name: str, state: Tensor, wanted: tuple[int, ...], letters: str, inputs: dict[str, Tensor]) -> None:
    """A state [M, ...] that is changed in place, its rows next to each other."""
    floats(op, {**inputs, name: state})
    shape(op, name, state, (*state.shape[:1], *wanted), letters)
    if not state.is_contiguous():
        raise ShapeError(
            f"{op}: {name} has strides {state.stride()}, one that is changed in place must be contiguous; keep a copy."
        )


def choices(op: str, index: Tensor, E: int) -> None:
    """Every expert named exists. A traced index has no values to look at."""
    if torch.compiler.is_compiling() or index.numel() == 0 or index.is_meta:
        return
    least, most = (int(bound) for bound in index.aminmax())
    if least < 0 or most >= E:
        raise ShapeError(f"{op}: index goes from {least} to {most}, {E} experts allow 0 to {E - 1}; route to those.")


def named_once(op: str, rows: Tensor | None, N: int, state: Tensor) -> None:
    """The kept rows that N tokens continue, each at most once; all of them, in order, for None."""
    M = state.shape[0]
    if rows is None:
        if N != M:
            raise ShapeError(f"{op}: {N} tokens came for {M} kept rows; name theirs in rows, int64 [N].")
        return
    if rows.dtype != torch.int64 or rows.shape != (N,):
        raise ShapeError(
            f"{op}: rows is {rows.dtype} of shape {tuple(rows.shape)}, torch.int64 of [N] = ({N},) is needed; "
            f"name the row of each token."
        )
    named = rows.tolist()
    if named and (min(named) < 0 or max(named) >= M or len(set(named)) < N):
        raise ShapeError(f"{op}: rows are {named}, each of 0 to {M - 1} may be named once; leave the others out.")


def attention(op: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """q [B, T, H, K] over k [B, S, Hk, K] and v [B, S, Hk, V]."""
    for name, tensor, letters in (("q", q, "B, T, H, K"), ("k", k, "B, S, Hk, K"), ("v", v, "B, S, Hk, V")):
        rank(op, name, tensor, letters)
    floats(op, {"q": q, "k": k, "v": v})
    (B, _, H, K), (S, Hk), V = q.shape, k.shape[1:3], v.shape[3]
    shape(op, "k", k, (B, S, Hk, K), "B, S, Hk, K")
    shape(op, "v", v, (B, S, Hk, V), "B, S, Hk, V")
    multiple(op, "query", H, "key", Hk)
    return H, K, Hk, V


def latent_attention(op: str, q: Tensor, latent: Tensor, rope: Tensor, up: Tensor) -> tuple[int, ...]:
    """q [B, T, H, Kn+P] over latent [B, S, R] and rope [B, S, P], with up [H, Kn+V, R]."""
    rank(op, "q", q, "B, T, H, Kn+P")
    rank(op, "latent", latent, "B, S, R")
    rank(op, "rope", rope, "B, S, P")
    rank(op, "up", up, "H, Kn+V, R")
    floats(op, {"q": q, "latent": latent, "rope": rope, "up": up})
    (B, _, H, width), (S, R), P, rows = q.shape, latent.shape[1:], rope.shape[2], up.shape[1]
    shape(op, "latent", latent, (B, S, R), "B, S, R")
    shape(op, "rope", rope, (B, S, P), "B, S, P")
    shape(op, "up", up, (H, rows, R), "H, Kn+V, R")
    if not 0 < width - P < rows:
        raise ShapeError(
            f"{op}: q has {width} columns, rope {P}, up {rows} rows per head, which leaves a key or a value "
            f"empty; give q Kn+P columns and up Kn+V rows, Kn and V at least 1."
        )
    return H, width - P, P, R, rows - (width - P)


def kept_tokens(op: str, q: Tensor, lengths: tuple[int, ...], *caches: Kept) -> None:
    """q [1, T, H, K] holds `lengths` queries of each row, at least 1 and at most as many as the row keeps."""
    rank(op, "q", q, "1, T, H, K")
    floats(op, {"q": q})
    for cache in caches:
        pages = cache.pages.lengths
        if len(pages) != len(lengths) or sum(lengths) != q.shape[1]:
            raise ShapeError(
                f"{op}: {sum(lengths)} queries of {len(lengths)} rows were announced, q has {q.shape[1]} and the cache "
                f"{len(pages)} rows; give one length per row that add up to T."
            )
        for length, held in zip(lengths, pages, strict=True):
            if not 1 <= length <= held:
                raise ShapeError(f"{op}: {length} queries came with {held} kept tokens; append their own first.")


def kept_shape(op: str, name: str, cache: Kept, letters: str, wanted: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """The shape per token of a kept tensor, one axis per letter, and exactly `wanted` where given."""
    if len(cache.shape) != letters.count(",") + 1 or (wanted is not None and cache.shape != wanted):
        need = f"[{letters}]" if wanted is None else f"[{letters}] = {wanted}"
        raise ShapeError(f"{op}: {name} keeps {cache.shape} per token, {need} is needed; keep it in that shape.")
    return cache.shape


def gate(op: str, z: Tensor, A_log: Tensor, dt_bias: Tensor) -> tuple[int, ...]:
    """z [..., HV] with dt_bias [HV], or z [..., HV, K] with dt_bias [HV, K]; A_log is per head in both."""
    floats(op, {"z": z, "A_log": A_log, "dt_bias": dt_bias})
    axes = dt_bias.dim()
    if axes not in (1, 2):
        raise ShapeError(f"{op}: dt_bias has shape {tuple(dt_bias.shape)}, [HV] or [HV, K] is needed; reshape it.")
    shape(op, "A_log", A_log, tuple(dt_bias.shape[:1]), "HV")
    shape(op, "dt_bias", dt_bias, tuple(z.shape[-axes:]), "the last axes of z")
    return tuple(dt_bias.shape)


def packable(op: str, weight: Tensor) -> None:
    """The last axis is whole groups of 32."""
    if weight.dim() < 1 or weight.shape[-1] % GROUP or weight.shape[-1] == 0:
        raise ShapeError(
            f"{op}: weight has shape {tuple(weight.shape)}, its last axis must be a multiple of {GROUP}; pad it."
        )


def packed(op: str, packed: Tensor, scale: Tensor) -> tuple[int, int]:
    """out and in of packed [..., out, in/2] with scale [..., out, in/32], bytes on one device."""
    for name, tensor in (("packed", packed), ("scale", scale)):
        if tensor.dtype != torch.uint8:
            raise ShapeError(f"{op}: {name} is {tensor.dtype}, torch.uint8 is needed; it holds bytes, not numbers.")
        if tensor.dim() < 2:
            raise ShapeError(
                f"{op}: {name} has shape {tuple(tensor.shape)}, at least 2 axes are needed; add one of size 1."
            )
    wanted = (*scale.shape[:-1], scale.shape[-1] * GROUP // 2)
    shape(op, "packed", packed, wanted, "..., out, in/2")
    if scale.device != packed.device:
        raise ShapeError(f"{op}: scale is on {scale.device}, packed on {packed.device}; move it to {packed.device}.")
    return scale.shape[-2], scale.shape[-1] * GROUP


def expert_stream(op: str, D: int, experts: ExpertStream, numbers: Sequence[int]) -> Iterator[tuple[int, PackedExpert]]:
    """What `experts` gives for `numbers`, every matrix checked: w1, w3 [I, D], w2 [D, I], each number once."""
    missing = set(numbers)
    for number, expert in experts(numbers):
        (I, width), up, down = (packed(op, *matrix) for matrix in expert)
        if width != D or up != (I, D) or down != (D, I):
            raise ShapeError(
                f"{op}: expert {number} has w1 [{I}, {width}], w3 {list(up)} and w2 {list(down)}, "
                f"the tokens need [I, {D}], [I, {D}] and [{D}, I]; give another expert."
            )
        if number not in missing:
            raise ShapeError(f"{op}: expert {number} came unasked or twice; give each number asked for once.")
        missing.remove(number)
        yield number, expert
    if missing:
        raise ShapeError(f"{op}: expert {min(missing)} did not come; give each number asked for once.")


def router(op: str, named: dict[str, Tensor | None], top_k: int) -> tuple[int, int]:
    """x [..., D], weight [E, D] and, where there is one, bias [E] fit; top_k is from 1 to E. Returns (E, D)."""
    x, weight, bias = named["x"], named["weight"], named.get("bias")
    assert x is not None
    assert weight is not None
    rank(op, "weight", weight, "E, D")
    floats(op, named)
    E, D = weight.shape[0], x.shape[-1]
    shape(op, "weight", weight, (E, D), "E, D")
    if bias is not None:
        shape(op, "bias", bias, (E,), "E")
    if not 1 <= top_k <= E:
        raise ShapeError(f"{op}: top_k is {top_k}, {E} experts allow 1 to {E}; choose a number in between.")
    return E, D
