"""What is kept of earlier conversations, by the tokens they began with: a tree of ids whose nodes may hold memory.

A lookup finds the longest held beginning of a prompt and says why it was not longer. Memory is let go in the order of
last use, while its path stays for a while, so that a later miss can say that it was evicted. Knows nothing of tensors:
what is held is anything with a length, `drop` lets it go. Start at `PrefixTree.find`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

REMEMBERED = 4096  # paths without memory kept for the sake of saying why


class HasLength(Protocol):
    """What may be held."""

    @property
    def length(self) -> int:
        """Tokens it was taken at."""
        ...


H = TypeVar("H", bound=HasLength)


@dataclass(eq=False)
class Node(Generic[H]):
    """A run of tokens after its parent's; what is held was taken at its end."""

    ids: tuple[int, ...]
    parent: Node[H] | None
    children: dict[int, Node[H]] = field(default_factory=dict)
    held: H | None = None
    evicted: bool = False
    used: int = 0


@dataclass(frozen=True)
class Found(Generic[H]):
    """What a lookup found.

    held: of the longest beginning, None for none. length: its tokens that can be used. agreed: tokens that some kept
    path begins with as well. continued: what that path goes on with, empty where it ends. evicted: memory for a longer
    beginning was let go.
    """

    held: H | None
    length: int
    agreed: int
    continued: tuple[int, ...]
    evicted: bool


class PrefixTree(Generic[H]):
    """Held beginnings of each owner, apart from all other owners'.

    drop: called once with everything that is let go. cuts: whether what is held serves every shorter beginning too, as
    a cache of all tokens does and a recurrent state does not.
    """

    def __init__(self, drop: Callable[[H], None], cuts: bool) -> None:
        self._drop, self._cuts = drop, cuts
        self._roots: dict[str, Node[H]] = {}
        self._clock = 0

    def find(self, owner: str, ids: Sequence[int], most: int) -> Found[H]:
        """The longest held beginning of `ids` of at most `most` tokens; it counts as used now."""
        node = self._roots.get(owner)
        if node is None:
            return Found(None, 0, 0, (), False)
        best: Node[H] | None = None
        evicted, at, continued = False, 0, ()
        while True:
            child = node.children.get(ids[at]) if at < len(ids) else None
            if child is None:
                continued = next(iter(node.children.values())).ids if node.children else ()
                break
            agreed = _common(child.ids, ids, at)
            at += agreed
            if agreed < len(child.ids):
                node, continued = child, child.ids[agreed:]
                break
            node = child
            if at <= most and node.held is not None:
                best, evicted = node, False
            elif at <= most and node.evicted:
                evicted = True
        longer = self._below(node) if self._cuts else None
        if longer is not None:
            self._touch(longer)
            return Found(longer.held, min(at, most), at, continued, False)
        if best is None or best.held is None:
            return Found(None, 0, at, continued, evicted)
        self._touch(best)
        return Found(best.held, min(best.held.length, most), at, continued, evicted)

    def _below(self, node: Node[H]) -> Node[H] | None:
        """A node that holds something, the given one or any after it."""
        stack = [node]
        while stack:
            node = stack.pop()
            if node.held is not None:
                return node
            stack.extend(node.children.values())
        return None

    def keep(self, owner: str, ids: Sequence[int], held: H) -> None:
        """Hold `held`, taken after `ids`; one already held there is let go."""
        node = self._roots.setdefault(owner, Node((), None))
        at = 0
        while at < len(ids):
            child = node.children.get(ids[at])
            if child is None:
                child = Node(tuple(ids[at:]), node)
                node.children[ids[at]] = child
            else:
                agreed = _common(child.ids, ids, at)
                if agreed < len(child.ids):
                    child = _split(child, agreed)
            at += len(child.ids)
            node = child
        if node.held is not None:
            self._drop(node.held)
        node.held, node.evicted = held, False
        self._touch(node)

    def held(self) -> list[H]:
        """All that is held, the one used longest ago first."""
        return [node.held for node in self._oldest_first() if node.held is not None]

    def evict_oldest(self) -> bool:
        """Let go of what was used longest ago; False when nothing is held."""
        oldest = next(iter(self._oldest_first()), None)
        if oldest is None or oldest.held is None:
            return False
        self._drop(oldest.held)
        oldest.held, oldest.evicted = None, True
        self._forget_old_paths()
        return True

    def clear(self) -> None:
        """Let go of everything, and of every path."""
        for held in self.held():
            self._drop(held)
        self._roots.clear()

    def _touch(self, node: Node[H]) -> None:
        self._clock += 1
        node.used = self._clock

    def _nodes(self) -> Iterator[Node[H]]:
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def _oldest_first(self) -> list[Node[H]]:
        return sorted((node for node in self._nodes() if node.held is not None), key=lambda node: node.used)

    def _forget_old_paths(self) -> None:
        """Remove the oldest leaves that hold nothing, beyond REMEMBERED of them."""
        leaves = [n for n in self._nodes() if n.parent is not None and not n.children and n.held is None]
        for leaf in sorted(leaves, key=lambda node: node.used)[: max(0, len(leaves) - REMEMBERED)]:
            assert leaf.parent is not None
            del leaf.parent.children[leaf.ids[0]]


def _common(run: tuple[int, ...], ids: Sequence[int], at: int) -> int:
    """How many tokens of `run` stand in `ids` from `at` on."""
    end = min(len(run), len(ids) - at)
    for n in range(end):
        if run[n] != ids[at + n]:
            return n
    return end


def _split(child: Node[H], at: int) -> Node[H]:
    """Cut the node's run after `at` tokens; the new node for the first part."""
    assert child.parent is not None
    first = Node(child.ids[:at], child.parent, used=child.used)
    child.parent.children[child.ids[0]] = first
    child.ids, child.parent = child.ids[at:], first
    first.children[child.ids[0]] = child
    return first
