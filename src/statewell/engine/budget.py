"""How many bytes a request may come to need, and whether they are there: arithmetic, exact, before anything is read."""

from __future__ import annotations

from dataclasses import dataclass

from statewell.config.memory import MemorySpec
from statewell.config.numbers import format_bytes
from statewell.engine.request import Request
from statewell.errors import LimitError


@dataclass(frozen=True)
class Budget:
    """spec: all layers of one row. rows, page: of the memory. limit: bytes, None for none."""

    spec: MemorySpec
    rows: int
    page: int
    limit: int | None

    def __post_init__(self) -> None:
        if self.limit is not None and self.slots >= self.limit:
            raise LimitError(
                f"{self.rows} conversations have fixed states of {format_bytes(self.slots)} and the memory budget is "
                f"{format_bytes(self.limit)}; raise it, or allow fewer conversations at a time."
            )

    @property
    def slots(self) -> int:
        """Bytes of all rows' fixed states, there from the start."""
        return self.rows * self.spec.fixed_bytes

    def needs(self, request: Request) -> int:
        """Bytes besides its slots that the request takes at its longest, every row in pages of its own.

        What runs in several rows, or guesses ahead, keeps a state of each row aside for a moment.
        """
        pages = -(-request.longest // self.page) * self.page * self.spec.bytes_per_token
        aside = self.spec.fixed_bytes if request.rows > 1 or request.draft else 0
        return request.rows * (pages + aside)

    def check(self, request: Request) -> None:
        """Raise LimitError for a request that could not run even alone."""
        if request.rows > self.rows:
            raise LimitError(
                f"The request runs {request.rows} conversations at a time, {self.rows} is the most here; ask for fewer "
                "choices or beams."
            )
        if self.limit is not None and self.slots + self.needs(request) > self.limit:
            raise LimitError(
                f"{request.rows} x {request.longest:,} tokens need {format_bytes(self.needs(request))} of memory, "
                f"{format_bytes(self.limit - self.slots)} is the most here; shorten the prompt or lower max_tokens."
            )

    def allows(self, committed: int, more: int) -> bool:
        """Whether `more` bytes fit beside what is promised already."""
        return self.limit is None or self.slots + committed + more <= self.limit
