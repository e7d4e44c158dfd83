"""The short causal convolution in front of the delta family: each channel mixes its own last W tokens.

Written as W shifted multiply-adds, elementwise, always in the same order of lags: a token's result cannot
depend on where in the row it stands or on how many follow, so any split equals the whole bit for bit. That
holds for the gradients too: the one sum over tokens, that of the taps, is a fixed tree which zeros of later
tokens leave unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewell.kernels.reference.precision import promoted


def short_conv(x: Tensor, weight: Tensor, state: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    """y_t = sum_j weight[:, j] * x_{t-(W-1)+j}, and the last W-1 inputs; shapes as in `ops.short_conv`.

    Products and sums are in at least float32, y is cast back; the state keeps the inputs as they came.
    """
    B, _, D = x.shape
    W = weight.shape[1]
    lengths = [x.shape[1]] * B if cu_seqlens is None else cu_seqlens.diff().tolist()
    if state is None:
        state = x.new_zeros(len(lengths), W - 1, D)
    if len(set(lengths)) > 1:
        return _ragged(x, weight, state, lengths)
    rows = x.reshape(len(lengths), -1, D) if lengths else x
    dtype = promoted(x, weight)
    y = _Taps.apply(rows.to(dtype), state.to(dtype), weight.to(dtype).T.contiguous())
    return y.to(x.dtype).view(x.shape), last_inputs(rows, state)


def last_inputs(x: Tensor, state: Tensor) -> Tensor:
    """The newest W-1 of (state, then x), as a tensor of its own: a view would keep the whole of x alive."""
    kept, T = state.shape[1], x.shape[1]
    if kept <= T:
        return x[:, T - kept :].to(state.dtype, copy=True)
    return torch.cat([state[:, T:], x.to(state.dtype)], dim=1)


def _ragged(x: Tensor, weight: Tensor, state: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Segments of different lengths: each follows its own history in one longer row, then is read out."""
    dtype, kept = promoted(x, weight), state.shape[1]
    segments, histories = x[0].split(lengths), state.unbind(0)
    pieces = [piece.to(dtype) for pair in zip(histories, segments, strict=True) for piece in pair]
    joined = torch.cat(pieces)[None]  # [1, T + N*(W-1), D]
    y = _Taps.apply(joined, joined.new_zeros(1, kept, x.shape[2]), weight.to(dtype).T.contiguous())
    outputs = y[0].split([piece.shape[0] for piece in pieces])[1::2]
    new = [last_inputs(s[None], h[None]) for s, h in zip(segments, histories, strict=True)]
    return torch.cat(outputs)[None].to(x.dtype), torch.cat(new)


class _Taps(torch.autograd.Function):
    """x [N, L, D] with its history [N, W-1, D] under taps [W, D], one dtype; y [N, L, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, history: Tensor, taps: Tensor) -> Tensor:
        ctx.save_for_backward(x, history, taps)
        W, L = taps.shape[0], x.shape[1]
        y = x * taps[W - 1]
        product = torch.empty_like(y)
        for lag in range(1, W):
            tap, m = taps[W - 1 - lag], min(lag, L)
            y[:, :m] += history[:, W - 1 - lag : W - 1 - lag + m] * tap
            if m < L:
                # mul then add: a fused multiply-add may round differently in the body and the tail of a row
                y[:, m:] += torch.mul(x[:, : L - m], tap, out=product[:, m:])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (dy,) = grads
        x, history, taps = ctx.saved_tensors
        W, L = taps.shape[0], x.shape[1]
        dx, dhistory, dtaps = dy * taps[W - 1], torch.zeros_like(history), torch.empty_like(taps)
        product = torch.empty_like(dx)
        dtaps[W - 1] = _sum_tokens(torch.mul(dy, x, out=product))
        for lag in range(1, W):
            j, m = W - 1 - lag, min(lag, L)
            past = slice(j, j + m)
            dhistory[:, past] += dy[:, :m] * taps[j]
            dx[:, : L - m] += torch.mul(dy[:, m:], taps[j], out=product[:, m:])
            torch.mul(dy[:, m:], x[:, : L - m], out=product[:, m:])
            torch.mul(dy[:, :m], history[:, past], out=product[:, :m])
            dtaps[j] = _sum_tokens(product)
        return dx, dhistory, dtaps


def _sum_tokens(terms: Tensor) -> Tensor:
    """Sum of [N, L, D] over tokens, then rows, by neighbours in pairs: appended zero tokens change no bit."""
    while terms.shape[1] > 1:
        even = terms.shape[1] // 2 * 2
        pairs = terms[:, 0:even:2] + terms[:, 1:even:2]
        terms = pairs if even == terms.shape[1] else torch.cat([pairs, terms[:, even:]], dim=1)
    return terms.sum(dim=(0, 1))
