"""The tree of kept beginnings, against a plain list of them."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from statewell.engine.prefix import PrefixTree

IDS = st.lists(st.integers(0, 2), max_size=8).map(tuple)


@dataclass(eq=False)
class Thing:
    length: int


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(st.lists(IDS.filter(bool), max_size=12), IDS, st.integers(0, 8))
def test_the_longest_kept_beginning_is_found(kept: list[tuple[int, ...]], ids: tuple[int, ...], most: int):
    tree: PrefixTree[Thing] = PrefixTree(lambda thing: None, cuts=False)
    for beginning in kept:
        tree.keep("a", beginning, Thing(len(beginning)))
    found = tree.find("a", ids, most)
    usable = [len(k) for k in kept if len(k) <= most and ids[: len(k)] == k]
    assert found.length == max(usable, default=0)
    assert (found.held is None) == (not usable)
    assert found.agreed == max((common(k, ids) for k in kept), default=0)
    assert tree.find("b", ids, most).held is None


@given(st.lists(IDS.filter(bool), min_size=1, max_size=12), IDS, st.integers(0, 8))
def test_what_can_be_cut_serves_every_shorter_beginning(kept: list[tuple[int, ...]], ids: tuple[int, ...], most: int):
    tree: PrefixTree[Thing] = PrefixTree(lambda thing: None, cuts=True)
    for beginning in kept:
        tree.keep("a", beginning, Thing(len(beginning)))
    found = tree.find("a", ids, most)
    assert found.length == min(max(common(k, ids) for k in kept), most)
    assert found.held is not None
    assert found.held.length >= found.length


@given(st.lists(st.tuples(st.sampled_from(["keep", "find", "evict"]), IDS.filter(bool)), max_size=40))
def test_everything_kept_is_let_go_exactly_once_and_the_oldest_first(steps: list[tuple[str, tuple[int, ...]]]):
    gone: list[Thing] = []
    tree: PrefixTree[Thing] = PrefixTree(gone.append, cuts=False)
    order: list[tuple[int, ...]] = []
    things: dict[tuple[int, ...], Thing] = {}
    made = []
    for what, ids in steps:
        if what == "keep":
            made.append(Thing(len(ids)))
            tree.keep("a", ids, made[-1])
            order = [k for k in order if k != ids] + [ids]
            things[ids] = made[-1]
        elif what == "find":
            found = tree.find("a", ids, len(ids))
            if found.held is not None:
                used = ids[: found.length]
                assert things[used] is found.held
                order = [k for k in order if k != used] + [used]
        elif order:
            oldest = order.pop(0)
            assert tree.evict_oldest()
            assert gone[-1] is things.pop(oldest)
            found = tree.find("a", oldest, len(oldest))
            assert found.evicted or found.held is not None
            if found.held is not None:
                used = oldest[: found.length]
                order = [k for k in order if k != used] + [used]
        else:
            assert not tree.evict_oldest()
    tree.clear()
    assert len(gone) == len(set(map(id, gone))) == len(made)
