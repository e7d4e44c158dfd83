"""Rows and pages, by number: nothing is handed out twice and nothing is lost, whatever the order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statewell.errors import LimitError, StatewellError
from statewell.memory.pools import Holders, Rows


@given(st.lists(st.integers(0, 5), max_size=60))
def test_a_row_is_never_in_two_hands_and_comes_back(choices: list[int]):
    rows, taken = Rows(4), []
    for choice in choices:
        if choice < 3 and len(taken) < 4:
            row = rows.take()
            assert row not in taken
            taken.append(row)
        elif taken:
            rows.give_back(taken.pop(choice % len(taken)))
        assert rows.taken == len(taken)
    if len(taken) == 4:
        with pytest.raises(LimitError, match="all 4 rows are in use"):
            rows.take()


def test_a_row_cannot_be_given_back_twice():
    rows = Rows(2)
    row = rows.take()
    rows.give_back(row)
    with pytest.raises(StatewellError, match="row 0 of 2 is not in use"):
        rows.give_back(row)


@given(st.lists(st.tuples(st.sampled_from(["new", "share", "let go"]), st.integers(0, 9)), max_size=80))
def test_a_page_is_free_exactly_when_its_last_holder_lets_go(steps: list[tuple[str, int]]):
    holders, known, seen = Holders(), {}, set()
    for what, pick in steps:
        if what == "new":
            page = holders.new()
            assert page not in seen
            seen.add(page)
            known[page] = 1
        elif known:
            page = sorted(known)[pick % len(known)]
            if what == "share":
                holders.share([page])
                known[page] += 1
            else:
                freed = holders.let_go([page])
                known[page] -= 1
                assert freed == ([page] if known[page] == 0 else [])
                known = {page: count for page, count in known.items() if count}
        assert len(holders) == len(known)
        assert all(holders.count(page) == count for page, count in known.items())
    free = max(seen, default=0) + 1
    with pytest.raises(StatewellError, match="is free"):
        holders.share([free])
    with pytest.raises(StatewellError, match="is free"):
        holders.let_go([free])
