"""Memory of earlier conversations put to use again: what a prompt finds, what is kept, and what goes to make room.

What is kept counts against the same budget as what runs, and goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from statewell.config.numbers import format_bytes
from statewell.engine.budget import Budget
from statewell.engine.prefix import Found, PrefixTree
from statewell.engine.request import Request, Reuse
from statewell.errors import LimitError
from statewell.memory.base import Snapshot
from statewell.memory.paged import Held, PagedMemory

COMPARED = 64  # tokens whose text is compared where two tokenisations part


class Reusable:
    """The kept beginnings of one memory.

    state_every: a prompt's state is kept at every multiple of it. bytes_of: as in Engine.
    """

    def __init__(
        self,
        memory: PagedMemory,
        budget: Budget,
        state_every: int,
        bytes_of: Callable[[Sequence[int]], bytes] | None,
    ) -> None:
        self._memory, self._budget, self._bytes_of = memory, budget, bytes_of
        self._tree: PrefixTree[Held] = PrefixTree(memory.drop, memory.cuts)
        # a cache of all tokens serves every shorter beginning, so that keeping it once is enough
        self._every = None if memory.cuts else state_every

    def begin(self, request: Request) -> tuple[int, Reuse]:
        """A row that holds as much of the prompt as can be reused, and how much that is.

        The last token of a prompt is always read: what follows it has to be scored.
        """
        if request.echo:
            return self._memory.open(), Reuse(tokens=0, missed="all of the prompt is scored")
        most = len(request.prompt) - 1
        found = self._tree.find(request.owner, request.prompt, most)
        if found.held is None:
            return self._memory.open(), Reuse(tokens=0, missed=self._why(request.prompt, found))
        row = self._memory.open(found.held, found.length)
        missed = None if found.length == most else self._why(request.prompt, found)
        return row, Reuse(tokens=found.length, missed=missed)

    def next_stop(self, read: int) -> int | None:
        """The token after which a prompt's state is to be kept next, None where none is."""
        return None if self._every is None else (read // self._every + 1) * self._every

    def keep(self, owner: str, ids: Sequence[int], row: int) -> None:
        """Keep what the row holds, which has taken `ids` in, unless there is no room for it."""
        if ids and self.make_room(self._budget.spec.fixed_bytes):
            self._tree.keep(owner, ids, self._memory.hold(row))

    def snapshot(self, owner: str, ids: Sequence[int]) -> Snapshot | None:
        """What is held of the longest kept beginning of `ids`, and no further: a copy. None where nothing is."""
        found = self._tree.find(owner, ids, len(ids))
        # a cache of all tokens may be held after a longer text that begins alike
        return None if found.held is None else self._memory.snapshot(found.held, found.length)

    def take_in(self, owner: str, ids: Sequence[int], snapshot: Snapshot) -> None:
        """Keep `snapshot`, taken after `ids`. Raises LimitError without room, CheckpointError for another model's."""
        pages = -(-len(ids) // self._memory.page) * self._memory.page_bytes
        if not self.make_room(self._budget.spec.fixed_bytes + pages):
            raise LimitError(
                f"A snapshot of {len(ids):,} tokens does not fit beside what runs in a memory budget of "
                f"{format_bytes(self._budget.limit or 0)}; raise it, or wait."
            )
        self._tree.keep(owner, ids, self._memory.take_in(snapshot))

    def make_room(self, more: int) -> bool:
        """Let go, oldest first, until `more` bytes fit; False when they do not even then."""
        limit = self._budget.limit
        while limit is not None and self._memory.bytes().reserved + more > limit:
            if not self._tree.evict_oldest():
                return False
        return True

    def clear(self) -> None:
        """Let go of everything."""
        self._tree.clear()

    def _why(self, prompt: Sequence[int], found: Found[Held]) -> str:
        """Why not more of the prompt could be reused."""
        if found.evicted:
            return "evicted"
        if found.agreed == 0 and not found.continued:
            return "nothing held"
        if found.agreed < len(prompt) and found.continued:
            if self._same_text(prompt[found.agreed :], found.continued):
                return "retokenised"
            if found.length == found.agreed or found.held is None or found.agreed < len(prompt) - 1:
                return f"diverged at token {found.agreed}"
        if found.length < found.agreed:
            return f"no state at token {found.agreed}"
        return f"nothing held past token {found.agreed}"

    def _same_text(self, left: Sequence[int], right: Sequence[int]) -> bool:
        """Whether two runs of other tokens begin with the same text: as far as the shorter one's first tokens go."""
        if self._bytes_of is None:
            return False
        one, other = self._bytes_of(left[:COMPARED]), self._bytes_of(right[:COMPARED])
        longer = max(len(self._bytes_of(left[:1])), len(self._bytes_of(right[:1])))
        compared = min(len(one), len(other))
        return compared >= longer > 0 and one[:longer] == other[:longer]
