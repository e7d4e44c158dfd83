"""Who holds which row and which page: numbers alone, no tensors.

A row is held by one conversation at a time. A page may have several holders, each of which reads it; it is free again
when the last lets it go.
"""

from __future__ import annotations

from collections.abc import Iterable

from statewell.errors import LimitError, StatewellError


class Rows:
    """Row numbers 0 to count - 1, the lowest free one first."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))

    @property
    def taken(self) -> int:
        """Rows in use."""
        return self.count - len(self._free)

    def take(self) -> int:
        """A free row; raises LimitError when there is none."""
        if not self._free:
            raise LimitError(f"all {self.count} rows are in use; close a conversation first, or make room for more.")
        return self._free.pop()

    def give_back(self, row: int) -> None:
        """The row is free again; raises StatewellError for one that is free already."""
        if row in self._free or not 0 <= row < self.count:
            raise StatewellError(f"row {row} of {self.count} is not in use, so it cannot be given back.")
        self._free.append(row)
        self._free.sort(reverse=True)


class Holders:
    """How many hold each page, by page number; numbers are never used twice."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._next = 0

    def __len__(self) -> int:
        """Pages that someone holds."""
        return len(self._counts)

    def new(self) -> int:
        """A fresh page with one holder."""
        page, self._next = self._next, self._next + 1
        self._counts[page] = 1
        return page

    def count(self, page: int) -> int:
        """The page's holders; 0 once it is free."""
        return self._counts.get(page, 0)

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each; raises StatewellError for a free page."""
        for page in pages:
            if page not in self._counts:
                raise StatewellError(f"page {page} is free, so it cannot be shared.")
            self._counts[page] += 1

    def let_go(self, pages: Iterable[int]) -> list[int]:
        """One holder less for each; those that nobody holds any more. Raises StatewellError for a free page."""
        freed = []
        for page in pages:
            if page not in self._counts:
                raise StatewellError(f"page {page} is free, so nobody can let it go.")
            self._counts[page] -= 1
            if not self._counts[page]:
                del self._counts[page]
                freed.append(page)
        return freed
