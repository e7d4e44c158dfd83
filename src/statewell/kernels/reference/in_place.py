"""The steps on a kept state: the same token as the `_step` operations, its new state written where the old one was.

The named rows are taken out, continued and put back, so what a gradient still needs of them is a copy. Start at
`continued`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from statewell.kernels.reference import recurrent
from statewell.kernels.reference.conv import short_conv
from statewell.kernels.reference.recurrent import State


def linear_step_(
    q: Tensor, k: Tensor, v: Tensor, state: State, rows: Tensor | None, scale: float, normalize: bool
) -> Tensor:
    """`linear_step` on rows of S, or of S and z."""
    return continued(lambda held: recurrent.linear_step(q, k, v, scale, held, normalize), state, rows)


def delta_step_(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor, rows: Tensor | None, scale: float
) -> Tensor:
    """`delta_step` on rows of the state."""
    return continued(lambda held: recurrent.delta_step(q, k, v, beta, scale, held), state, rows)


def gated_delta_step_(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, rows: Tensor | None, scale: float
) -> Tensor:
    """`gated_delta_step` on rows of the state."""
    return continued(lambda held: recurrent.gated_delta_step(q, k, v, g, beta, scale, held), state, rows)


def kda_step_(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, rows: Tensor | None, scale: float
) -> Tensor:
    """`kda_step` on rows of the state."""
    return continued(lambda held: recurrent.kda_step(q, k, v, g, beta, scale, held), state, rows)


def short_conv_step_(x: Tensor, weight: Tensor, state: Tensor, rows: Tensor | None) -> Tensor:
    """`short_conv` of one token a row, on rows of the tails."""
    y = continued(lambda held: short_conv(x[:, None], weight, held, None), state, rows)
    return y[:, 0]


def continued(step: Callable[..., tuple[Tensor, State]], state: State, rows: Tensor | None) -> Tensor:
    """The result of `step` on the states of `rows` (None: of all); the new ones replace them, without their graph."""
    if isinstance(state, Tensor):
        o, new = step(_taken(state, rows))
    else:
        o, new = step((_taken(state[0], rows), _taken(state[1], rows)))
    for held, moved in zip(_parts(state), _parts(new), strict=True):
        _put(held, rows, moved.detach().to(held.dtype))
    return o


def _parts(state: State) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else state


def _taken(held: Tensor, rows: Tensor | None) -> Tensor:
    return held.clone() if rows is None else held.index_select(0, rows)


def _put(held: Tensor, rows: Tensor | None, new: Tensor) -> None:
    if rows is None:
        held.copy_(new)
    else:
        held.index_copy_(0, rows, new)
