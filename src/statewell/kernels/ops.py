"""THE list of operations: signature, shapes and units, one docstring each; the public face is `sw.ops`.

Every function checks its tensors once (`checks.py` words the refusals), asks the registry for a backend and
hands over; no mathematics lives here. Shape letters: B rows, T tokens, S kept tokens, H query/key heads, HV
value heads (HV % H == 0: value head h reads query/key head h // (HV/H)), K key width, V value width, D
channels, W conv taps, E experts, N = B or, packed, the segments. Packed: B = 1 and `cu_seqlens` [N+1] whole
numbers from 0 to T; each segment starts from its own state, or from nothing. State, sums and gates are at
least float32, and float64 when an input is; an output has the dtype of its values. A given state is never
changed, the new one is always returned; except where a name ends in an underscore: there `state` holds M kept
rows, those named by `rows` (int64 [N], each once; None: all, in order) are moved on in place, o alone is
returned, and a gradient reaches the other inputs only. `scale=None` means K^-0.5. Raises ShapeError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from statewell.errors import ShapeError
from statewell.kernels import checks, in_place
from statewell.kernels.checks import LinearState
from statewell.kernels.packed import ExpertStream
from statewell.kernels.pages import Kept
from statewell.kernels.registry import Call, resolve


def _pick(op: str, dims: tuple[int, ...], first: Tensor, *others: Tensor | None) -> Callable:
    """The backend's function for this kind of call; `first` gives device and dtype."""
    # a loop, not two generators: this runs for every call of a decode step
    dtype, grad, mixed = first.dtype, first.requires_grad, False
    for tensor in others:
        if tensor is not None:
            grad = grad or tensor.requires_grad
            mixed = mixed or tensor.dtype is not dtype
    return resolve(op, Call(first.device.type, dtype, dims, grad and torch.is_grad_enabled(), mixed))


def _scale(scale: float | None, q: Tensor) -> float:
    """The given scale, or one over the root of q's width."""
    return q.shape[-1] ** -0.5 if scale is None else scale


def linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    state: LinearState | None = None,
    normalize: bool = True,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, LinearState]:
    """Linear attention: a sum of all writes, read by q, divided by the sum of its weights when normalising.

    q, k: [B, T, H, K], already through the feature map (>= 0 when normalising). v: [B, T, HV, V].
    state: (S [N, HV, K, V], z [N, HV, K]) when normalising, else S alone.
    Returns o [B, T, HV, V] and the new state in the same form.
    Source: arXiv:2006.16236. Oracle: tests/kernels/test_chunkwise.py.
    """
    dims = checks.linear("linear", "B, T", {"q": q, "k": k, "v": v}, state, normalize, cu_seqlens)
    held = state if isinstance(state, tuple) else (state,)
    return _pick("linear", dims, q, k, v, *held)(q, k, v, _scale(scale, q), state, normalize, cu_seqlens)


def delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Delta rule: each write moves what k retrieves toward v by the fraction beta.

    q, k: [B, T, H, K], unit length. v: [B, T, HV, V]. beta: [B, T, HV] in [0, 2]. state: [N, HV, K, V].
    Returns o [B, T, HV, V] and the new state; the chunkwise form at every T.
    Source: arXiv:2406.06484. Oracle: tests/kernels/test_chunkwise.py.
    """
    dims = checks.delta("delta", "B, T", {"q": q, "k": k, "v": v, "beta": beta}, state, cu_seqlens)
    return _pick("delta", dims, q, k, v, beta, state)(q, k, v, beta, _scale(scale, q), state, cu_seqlens)


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Delta rule on a memory that first fades by exp(g), one number per value head.

    As `delta`, with g: [B, T, HV], natural-log retention <= 0 (-inf forgets everything).
    Source: arXiv:2412.06464. Oracle: tests/kernels/test_chunkwise.py.
    """
    dims = checks.delta("gated_delta", "B, T", {"q": q, "k": k, "v": v, "g": g, "beta": beta}, state, cu_seqlens)
    run = _pick("gated_delta", dims, q, k, v, g, beta, state)
    return run(q, k, v, g, beta, _scale(scale, q), state, cu_seqlens)


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Kimi delta attention: the delta rule on a memory whose every key channel fades by its own exp(g).

    As `delta`, with g: [B, T, HV, K], natural-log retention <= 0 (-inf forgets the channel).
    Source: arXiv:2510.26692. Oracle: tests/kernels/test_chunkwise.py.
    """
    dims = checks.delta("kda", "B, T", {"q": q, "k": k, "v": v, "g": g, "beta": beta}, state, cu_seqlens)
    return _pick("kda", dims, q, k, v, g, beta, state)(q, k, v, g, beta, _scale(scale, q), state, cu_seqlens)


def linear_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    state: LinearState | None = None,
    normalize: bool = True,
) -> tuple[Tensor, LinearState]:
    """`linear` for one token per row: q, k [N, H, K], v [N, HV, V], state required.

    Returns o [N, HV, V] and the new state; the recurrent form. Oracle: tests/kernels/test_ops.py.
    """
    checks.required("linear_step", state)
    dims = checks.linear("linear_step", "N", {"q": q, "k": k, "v": v}, state, normalize)
    held = state if isinstance(state, tuple) else (state,)
    return _pick("linear_step", dims, q, k, v, *held)(q, k, v, _scale(scale, q), state, normalize)


def delta_step(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float | None = None, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`delta` for one token per row: q, k [N, H, K], v [N, HV, V], beta [N, HV], state required.

    Returns o [N, HV, V] and the new state; the recurrent form. Oracle: tests/kernels/test_ops.py.
    """
    checks.required("delta_step", state)
    dims = checks.delta("delta_step", "N", {"q": q, "k": k, "v": v, "beta": beta}, state)
    return _pick("delta_step", dims, q, k, v, beta, state)(q, k, v, beta, _scale(scale, q), state)


def gated_delta_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`gated_delta` for one token per row: as `delta_step`, with g [N, HV]. Oracle: as `delta_step`."""
    checks.required("gated_delta_step", state)
    dims = checks.delta("gated_delta_step", "N", {"q": q, "k": k, "v": v, "g": g, "beta": beta}, state)
    return _pick("gated_delta_step", dims, q, k, v, g, beta, state)(q, k, v, g, beta, _scale(scale, q), state)


def kda_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`kda` for one token per row: as `delta_step`, with g [N, HV, K]. Oracle: as `delta_step`."""
    checks.required("kda_step", state)
    dims = checks.delta("kda_step", "N", {"q": q, "k": k, "v": v, "g": g, "beta": beta}, state)
    return _pick("kda_step", dims, q, k, v, g, beta, state)(q, k, v, g, beta, _scale(scale, q), state)


def linear_step_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearState,
    rows: Tensor | None = None,
    scale: float | None = None,
    normalize: bool = True,
) -> Tensor:
    """`linear_step` on kept rows, in place: state (S [M, HV, K, V], z [M, HV, K]), or S alone. Returns o [N, HV, V].

    Oracle: tests/kernels/test_in_place.py.
    """
    inputs, (S, z) = {"q": q, "k": k, "v": v}, checks.linear_form("linear_step_", state, normalize)
    states = {"state": S} if z is None else {"state": S, "z": z}
    check = partial(checks.linear_in_place, "linear_step_", inputs, S, z)
    run = in_place.kernel("linear_step_", inputs, states, rows, check)
    return run(q, k, v, state, rows, _scale(scale, q), normalize)


def delta_step_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    state: Tensor,
    rows: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """`delta_step` on kept rows, in place: state [M, HV, K, V]. Returns o [N, HV, V].

    Oracle: tests/kernels/test_in_place.py.
    """
    inputs = {"q": q, "k": k, "v": v, "beta": beta}
    check = partial(checks.delta_in_place, "delta_step_", inputs, state)
    run = in_place.kernel("delta_step_", inputs, {"state": state}, rows, check)
    return run(q, k, v, beta, state, rows, _scale(scale, q))


def gated_delta_step_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    rows: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """`gated_delta_step` on kept rows, in place: state [M, HV, K, V]. Returns o [N, HV, V].

    Oracle: tests/kernels/test_in_place.py.
    """
    inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    check = partial(checks.delta_in_place, "gated_delta_step_", inputs, state)
    run = in_place.kernel("gated_delta_step_", inputs, {"state": state}, rows, check)
    return run(q, k, v, g, beta, state, rows, _scale(scale, q))


def kda_step_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    rows: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """`kda_step` on kept rows, in place: state [M, HV, K, V]. Returns o [N, HV, V].

    Oracle: tests/kernels/test_in_place.py.
    """
    inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    check = partial(checks.delta_in_place, "kda_step_", inputs, state)
    run = in_place.kernel("kda_step_", inputs, {"state": state}, rows, check)
    return run(q, k, v, g, beta, state, rows, _scale(scale, q))


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:
    """Causal softmax attention: every query weighs all tokens up to its own.

    q: [B, T, H, K]. k: [B, S, Hk, K] and v: [B, S, Hk, V] with S >= T, the queries being the last T tokens,
    and H % Hk == 0 (query head h reads key head h // (H/Hk)). cu_seqlens_k: [N+1] bounds of the keys,
    cu_seqlens when None.
    Returns o [B, T, H, V] in q's dtype; long rows never hold [T, S] scores.
    Source: arXiv:1706.03762. Oracle: tests/kernels/test_attention.py.
    """
    dims = checks.attention("attention", q, k, v)
    checks.key_segments("attention", q, k, cu_seqlens, cu_seqlens_k)
    return _pick("attention", dims, q, k, v)(q, k, v, _scale(scale, q), cu_seqlens, cu_seqlens_k)


def mla(
    q: Tensor,
    latent: Tensor,
    rope: Tensor,
    up: Tensor,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Latent attention expanded: keys and values of every head are made from one latent per token (training).

    q: [B, T, H, Kn+P]. latent: [B, T, R], already normed. rope: [B, T, P], shared by the heads, never rotated.
    up: [H, Kn+V, R]: the first Kn rows of a head make its key, the rest its value. scale=None means (Kn+P)^-0.5.
    Returns o [B, T, H, V] in q's dtype.
    Source: arXiv:2405.04434 section 2.1; Kimi K3's released model code. Oracle: tests/kernels/test_attention.py.
    """
    dims = checks.latent_attention("mla", q, latent, rope, up)
    checks.shape("mla", "latent", latent, (*q.shape[:2], latent.shape[2]), "B, T, R")
    checks.segments("mla", q, cu_seqlens)
    return _pick("mla", dims, q, latent, rope, up)(q, latent, rope, up, _scale(scale, q), cu_seqlens)


def mla_absorbed(
    q: Tensor,
    latent: Tensor,
    rope: Tensor,
    up: Tensor,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> Tensor:
    """Latent attention absorbed: queries go down to the latent space and attend the kept latents (decoding).

    As `mla`, with S >= T latents of which the queries are the last T, and their bounds cu_seqlens_k.
    Oracle: tests/kernels/test_attention.py.
    """
    dims = checks.latent_attention("mla_absorbed", q, latent, rope, up)
    checks.key_segments("mla_absorbed", q, latent, cu_seqlens, cu_seqlens_k)
    run = _pick("mla_absorbed", dims, q, latent, rope, up)
    return run(q, latent, rope, up, _scale(scale, q), cu_seqlens, cu_seqlens_k)


def attention_kept(q: Tensor, k: Kept, v: Kept, lengths: tuple[int, ...], scale: float | None = None) -> Tensor:
    """`attention` where keys and values are kept in pages: each row's queries are the last of its kept tokens.

    q: [1, T, H, K], the queries of N rows end to end, `lengths` of each. k and v: (Hk, K) and (Hk, V) per token of the
    same rows, H % Hk == 0.
    Returns o [1, T, H, V] in q's dtype. Oracle: tests/kernels/test_kept.py.
    """
    checks.kept_tokens("attention_kept", q, lengths, k, v)
    (Hk, K), V = checks.kept_shape("attention_kept", "k", k, "Hk, K"), v.shape[-1]
    checks.kept_shape("attention_kept", "v", v, "Hk, V", (Hk, V))
    checks.shape("attention_kept", "q", q, (1, q.shape[1], q.shape[2], K), "1, T, H, K")
    checks.multiple("attention_kept", "query", q.shape[2], "key", Hk)
    run = _pick("attention_kept", (q.shape[2], K, Hk, V), q)
    return run(q, k, v, lengths, _scale(scale, q))


def mla_kept(
    q: Tensor, latent: Kept, rope: Kept, up: Tensor, lengths: tuple[int, ...], scale: float | None = None
) -> Tensor:
    """`mla_absorbed` where latents are kept in pages: each row's queries are the last of its kept tokens.

    q: [1, T, H, Kn+P], the queries of N rows end to end, `lengths` of each. latent and rope: (R,) and (P,) per token.
    Returns o [1, T, H, V] in q's dtype. Oracle: tests/kernels/test_kept.py.
    """
    checks.kept_tokens("mla_kept", q, lengths, latent, rope)
    (R,) = checks.kept_shape("mla_kept", "latent", latent, "R")
    (P,) = checks.kept_shape("mla_kept", "rope", rope, "P")
    checks.rank("mla_kept", "up", up, "H, Kn+V, R")
    checks.floats("mla_kept", {"q": q, "up": up})
    checks.shape("mla_kept", "up", up, (q.shape[2], up.shape[1], R), "H, Kn+V, R")
    Kn = q.shape[3] - P
    return _pick("mla_kept", (q.shape[2], Kn, P, R, up.shape[1] - Kn), q, up)(
        q, latent, rope, up, lengths, _scale(scale, q)
    )


def short_conv(
    x: Tensor, weight: Tensor, state: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Causal depthwise convolution, no bias, no activation: y_t = sum_j weight[:, j] * x_{t-(W-1)+j}.

    x: [B, T, D]. weight: [D, W], tap W-1 meets the current token. state: [N, W-1, D], the last inputs, oldest first.
    Returns y [B, T, D] and the new state (in the given state's dtype, else x's).
    Source: arXiv:2312.00752. Oracle: tests/kernels/test_conv.py.
    """
    checks.rank("short_conv", "x", x, "B, T, D")
    checks.rank("short_conv", "weight", weight, "D, W")
    checks.floats("short_conv", {"x": x, "weight": weight, "state": state})
    D, W = x.shape[2], weight.shape[1]
    checks.shape("short_conv", "weight", weight, (D, max(W, 1)), "D, W")
    N = checks.segments("short_conv", x, cu_seqlens)
    if state is not None:
        checks.shape("short_conv", "state", state, (N, W - 1, D), "N, W-1, D")
    return _pick("short_conv", (D, W), x, weight, state)(x, weight, state, cu_seqlens)


def short_conv_step_(x: Tensor, weight: Tensor, state: Tensor, rows: Tensor | None = None) -> Tensor:
    """`short_conv` of one token per row, on kept tails, in place: x [N, D], state [M, W-1, D]. Returns y [N, D].

    Oracle: tests/kernels/test_in_place.py.
    """
    check = partial(checks.conv_in_place, "short_conv_step_", x, weight, state)
    run = in_place.kernel("short_conv_step_", {"x": x, "weight": weight}, {"state": state}, rows, check)
    return run(x, weight, state, rows)


def attn_res(sources: Sequence[Tensor], norm_weight: Tensor, proj_weight: Tensor, eps: float = 1e-5) -> Tensor:
    """Attention over depth: each token's softmax mix of earlier outputs, scored by one learned query.

    sources: one or more [..., D] of one shape; their values are mixed as they are, only the scores are normed.
    norm_weight, proj_weight: [D], of which only the product matters. One source is returned as it is.
    Source: arXiv:2607.24653 (Kimi K3) and its released model code. Oracle: tests/kernels/test_depth.py.
    """
    if not sources:
        raise ShapeError("attn_res: 0 sources came, at least 1 is needed; pass the token embedding first.")
    named = {f"sources[{s}]": source for s, source in enumerate(sources)}
    for name, source in named.items():
        checks.shape("attn_res", name, source, tuple(sources[0].shape), "..., D")
    checks.floats("attn_res", {**named, "norm_weight": norm_weight, "proj_weight": proj_weight})
    width = tuple(sources[0].shape[-1:])
    checks.shape("attn_res", "norm_weight", norm_weight, width, "D")
    checks.shape("attn_res", "proj_weight", proj_weight, width, "D")
    return _pick("attn_res", width, *sources, norm_weight, proj_weight)(sources, norm_weight, proj_weight, eps)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU: silu(gate) * up, the gated product of a feed-forward network.

    gate, up: one shape; result in gate's dtype.
    Source: arXiv:2002.05202. Oracle: tests/kernels/test_parts.py.
    """
    checks.floats("swiglu", {"gate": gate, "up": up})
    checks.shape("swiglu", "up", up, tuple(gate.shape), "the shape of gate")
    return _pick("swiglu", tuple(gate.shape[-1:]), gate, up)(gate, up)


def situ(gate: Tensor, up: Tensor, beta: float = 4.0, linear_beta: float | None = 25.0) -> Tensor:
    """SiTU-GLU: beta*tanh(gate/beta)*sigmoid(gate) * linear_beta*tanh(up/linear_beta), a bounded SwiGLU.

    gate, up: one shape; result in gate's dtype. linear_beta=None leaves `up` as it is, and the result unbounded.
    Source: Kimi K3's released model code. Oracle: tests/kernels/test_parts.py.
    """
    checks.floats("situ", {"gate": gate, "up": up})
    checks.shape("situ", "up", up, tuple(gate.shape), "the shape of gate")
    return _pick("situ", tuple(gate.shape[-1:]), gate, up)(gate, up, beta, linear_beta)


def route(
    x: Tensor, weight: Tensor, bias: Tensor, top_k: int, scaling: float = 1.0, renormalize: bool = True
) -> tuple[Tensor, Tensor]:
    """Choose top_k experts per token by sigmoid score plus bias; ties go to the lowest expert.

    x: [..., D]. weight: [E, D]. bias: [E], used for the choice alone, never given a gradient.
    Returns index [..., top_k] int64, best first, and weight [..., top_k] (at least fp32): the chosen scores,
    divided by (their sum + 1e-20) when renormalising and top_k > 1, times scaling.
    Source: arXiv:2408.15664; Kimi K3's released model code. Oracle: tests/kernels/test_moe.py.
    """
    dims = checks.router("route", {"x": x, "weight": weight, "bias": bias}, top_k)
    return _pick("route", dims, x, weight)(x, weight, bias, top_k, scaling, renormalize)


def route_grouped(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    top_k: int,
    groups: tuple[int, int],
    scaling: float = 1.0,
    renormalize: bool = True,
) -> tuple[Tensor, Tensor]:
    """Choose top_k experts per token as `route` does, but only inside the token's best groups.

    groups: (how many equal groups of neighbours the experts form, how many of them a token keeps); a group is judged by
    the sum of its two best biased scores, ties go to the lowest.
    Source: arXiv:2412.19437 section 2.1.2; Kimi K3's released model code. Oracle: tests/kernels/test_moe.py.
    """
    dims = E, _ = checks.router("route_grouped", {"x": x, "weight": weight, "bias": bias}, top_k)
    count, kept = groups
    if count < 1 or E % count or E // count < 2 or not 1 <= kept <= count or top_k > kept * (E // count):
        raise ShapeError(
            f"route_grouped: {top_k} of {E} experts from {kept} of {count} groups cannot be; use equal groups of 2 or "
            "more that together hold top_k."
        )
    run = _pick("route_grouped", dims, x, weight)
    return run(x, weight, bias, top_k, groups, scaling, renormalize)


def route_softmax(
    x: Tensor, weight: Tensor, top_k: int, scaling: float = 1.0, renormalize: bool = True
) -> tuple[Tensor, Tensor]:
    """Choose top_k experts per token by softmax score; ties go to the lowest expert.

    x: [..., D]. weight: [E, D]. Returns as `route`; the weights are divided by their sum when renormalising.
    Source: arXiv:2101.03961; Qwen3-Next's released model code. Oracle: tests/kernels/test_moe.py.
    """
    dims = checks.router("route_softmax", {"x": x, "weight": weight}, top_k)
    return _pick("route_softmax", dims, x, weight)(x, weight, top_k, scaling, renormalize)


def experts(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    w1: Tensor,
    w3: Tensor,
    w2: Tensor,
    activation: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Each token's chosen experts, w2 activation(w1 x, w3 x), summed by weight; the others do no work.

    x: [M, Din]. index: [M, k] int64 below E. weight: [M, k]. w1, w3: [E, I, Din]. w2: [E, Dout, I].
    activation(gate, up) is elementwise on [rows, I]. Returns [M, Dout] in x's dtype, summed in at least fp32.
    The other tokens of the batch can change a result by rounding only.
    Source: arXiv:2401.06066. Oracle: tests/kernels/test_moe.py.
    """
    for name, tensor, letters in (("x", x, "M, Din"), ("index", index, "M, k"), ("w1", w1, "E, I, Din")):
        checks.rank("experts", name, tensor, letters)
    checks.rank("experts", "w2", w2, "E, Dout, I")
    checks.floats("experts", {"x": x, "weight": weight, "w1": w1, "w3": w3, "w2": w2})
    (M, Din), (E, I), (top_k, Dout) = x.shape, w1.shape[:2], (index.shape[1], w2.shape[1])
    if index.dtype != torch.int64:
        raise ShapeError(f"experts: index is {index.dtype}, torch.int64 is needed; call .long() on it.")
    checks.shape("experts", "index", index, (M, top_k), "M, k")
    checks.shape("experts", "weight", weight, (M, top_k), "M, k")
    checks.shape("experts", "w1", w1, (E, I, Din), "E, I, Din")
    checks.shape("experts", "w3", w3, (E, I, Din), "E, I, Din")
    checks.shape("experts", "w2", w2, (E, Dout, I), "E, Dout, I")
    checks.choices("experts", index, E)
    run = _pick("experts", (E, Din, I, Dout), x, weight, w1, w3, w2)
    return run(x, index, weight, w1, w3, w2, activation)


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last axis: the eps joins the sum, so a zero row stays zero.

    Source: the released delta-family layers (fla, Kimi Linear). Oracle: tests/kernels/test_parts.py.
    """
    checks.floats("l2norm", {"x": x})
    return _pick("l2norm", tuple(x.shape[-1:]), x)(x, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight * x * rsqrt(mean(x^2) + eps) over the last axis; weight [D] multiplies after the cast back.

    Source: arXiv:1910.07467. Oracle: tests/kernels/test_parts.py.
    """
    checks.floats("rms_norm", {"x": x, "weight": weight})
    checks.shape("rms_norm", "weight", weight, tuple(x.shape[-1:]), "D")
    return _pick("rms_norm", tuple(x.shape[-1:]), x, weight)(x, weight, eps)


def gated_rms_norm(
    x: Tensor, weight: Tensor, gate: Tensor, eps: float, activation: Callable[[Tensor], Tensor]
) -> Tensor:
    """weight * x * rsqrt(mean(x^2) + eps) * activation(gate): norm first, gate second, one cast at the end.

    x, gate: [..., V] of one shape. weight: [V]. activation: sigmoid (KDA, K3) or SiLU (DeltaNet, Gated DeltaNet).
    Source: arXiv:2412.06464; Kimi Linear's released model code. Oracle: tests/kernels/test_parts.py.
    """
    checks.floats("gated_rms_norm", {"x": x, "weight": weight, "gate": gate})
    checks.shape("gated_rms_norm", "weight", weight, tuple(x.shape[-1:]), "V")
    checks.shape("gated_rms_norm", "gate", gate, tuple(x.shape), "the shape of x")
    return _pick("gated_rms_norm", tuple(x.shape[-1:]), x, weight, gate)(x, weight, gate, eps, activation)


def decay_gate(z: Tensor, A_log: Tensor, dt_bias: Tensor) -> Tensor:
    """Log retention g = -exp(A_log) * softplus(z + dt_bias), in (-inf, 0], at least fp32.

    z: [..., HV] with dt_bias [HV] (one per head), or [..., HV, K] with dt_bias [HV, K] (one per channel).
    A_log: [HV].
    Source: arXiv:2312.00752, arXiv:2412.06464. Oracle: tests/kernels/test_parts.py.
    """
    dims = checks.gate("decay_gate", z, A_log, dt_bias)
    return _pick("decay_gate", dims, z, A_log, dt_bias)(z, A_log, dt_bias)


def bounded_gate(z: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float) -> Tensor:
    """Log retention g = lower_bound * sigmoid(exp(A_log) * (z + dt_bias)), strictly inside (lower_bound, 0).

    Shapes as `decay_gate`. lower_bound < 0, -5 in K3. Another function than `decay_gate`, not a clamp of it.
    Source: Kimi K3's released model code. Oracle: tests/kernels/test_parts.py.
    """
    if not lower_bound < 0:
        raise ShapeError(f"bounded_gate: lower_bound is {lower_bound}, a log retention is below 0; K3 uses -5.")
    dims = checks.gate("bounded_gate", z, A_log, dt_bias)
    return _pick("bounded_gate", dims, z, A_log, dt_bias)(z, A_log, dt_bias, lower_bound)


def mxfp4_dequantise(packed: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Unpack MXFP4: a sign and a magnitude of 0, 0.5, 1, 1.5, 2, 3, 4 or 6 in each half byte, times 2^(scale - 127).

    packed: [..., out, in/2] uint8, the first of two inputs in a byte's low half. scale: [..., out, in/32] uint8, 255
    for NaN. Returns [..., out, in]; exact in float64, and in float32 and bf16 up to a scale of 252.
    Source: OCP Microscaling Formats v1.0. Oracle: tests/kernels/test_mxfp4.py.
    """
    checks.packed("mxfp4_dequantise", packed, scale)
    call = Call(packed.device.type, dtype, tuple(scale.shape[-1:]), False)
    return resolve("mxfp4_dequantise", call)(packed, scale, dtype)


def mxfp4_quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a matrix to MXFP4: packed [..., in/2] and scale [..., in/32] of weight [..., in], in % 32 == 0.

    The scale puts the largest of 32 inputs between 3.5 and 7, where 6 is the most a half byte holds. weight is finite.
    Source: compressed-tensors 0.20, `mxfp4-pack-quantized`. Oracle: tests/kernels/test_mxfp4.py.
    """
    checks.floats("mxfp4_quantise", {"weight": weight})
    checks.packable("mxfp4_quantise", weight)
    return _pick("mxfp4_quantise", tuple(weight.shape[-1:]), weight)(weight)


def packed_experts(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    experts: ExpertStream,
    activation: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """`experts` over weights in MXFP4 that come one expert at a time, from memory or from a disk.

    x: [M, D], D % 32 == 0. index: [M, k] int64. weight: [M, k]. experts: asked once for the numbers that have tokens,
    ascending; gives each with its w1, w3 [I, D] and w2 [D, I], in any order. activation(gate, up): elementwise.
    Returns [M, D] in x's dtype; the order of arrival changes no bit. Gradients reach x and weight.
    Source: arXiv:2401.06066; Kimi K3's released checkpoint. Oracle: tests/kernels/test_mxfp4.py.
    """
    checks.rank("packed_experts", "x", x, "M, D")
    checks.rank("packed_experts", "index", index, "M, k")
    checks.floats("packed_experts", {"x": x, "weight": weight})
    (M, D), top_k = x.shape, index.shape[1]
    if index.dtype != torch.int64:
        raise ShapeError(f"packed_experts: index is {index.dtype}, torch.int64 is needed; call .long() on it.")
    checks.shape("packed_experts", "index", index, (M, top_k), "M, k")
    checks.shape("packed_experts", "weight", weight, (M, top_k), "M, k")
    run = _pick("packed_experts", (D,), x, weight)
    return run(x, index, weight, partial(checks.expert_stream, "packed_experts", D, experts), activation)
