"""What a text must look like, token by token: the engine's side of grammars and schemas, which live elsewhere."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Constraint(Protocol):
    """The state of one conversation in whatever its text has to follow."""

    def allowed(self) -> Tensor:
        """Token ids [n] that may come now, at least one. Raises StatewellError where nothing may."""
        ...

    def push(self, token: int) -> None:
        """The conversation goes on with `token`, one of those allowed."""
        ...

    def fork(self) -> Constraint:
        """The same state for another conversation; neither moves the other."""
        ...
