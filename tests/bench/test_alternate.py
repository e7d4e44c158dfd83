"""Turns, rows and cases of `statewell bench`, without timing anything real."""

from __future__ import annotations

import itertools

import pytest

from statewell.bench.alternate import Line, Lineup, alternate, repeated, shared, speed_row, time_lineup
from statewell.bench.limits import BYTES, FLOPS, Limits, Work

LIMITS = Limits(flops=(100e9, 90e9, 110e9), flops_by="N=8", bytes=(10e9,), bytes_by="a sum")


def test_runs_take_turns_and_the_first_rounds_are_not_timed():
    order: list[str] = []
    ticks = itertools.count()
    runs = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    seconds = alternate(runs, rounds=3, warm=1, clock=lambda: float(next(ticks)))
    assert order == ["a", "b"] * 4
    assert seconds == {"a": [1.0] * 3, "b": [1.0] * 3}


def test_a_short_call_is_repeated_and_its_time_divided():
    calls: list[int] = []
    repeated(lambda: calls.append(1), 5)()
    assert len(calls) == 5
    lineup = Lineup(runs={"a": lambda: calls.append(1)}, lines=[Line(name="a call", run="a")], calls=7)
    [row] = time_lineup(lineup, 2)
    assert len(calls) == 5 + 7 * 4  # two untimed turns and two timed ones
    assert row["name"] == "a call"
    assert row["peer"] is row["ratio"] is row["limit_share"] is None


def test_a_row_has_the_spread_and_the_peers_median_over_its_own():
    row = speed_row("x", "MiB", [2.0, 1.0, 4.0], "peer", [6.0, 7.0, 5.0])
    assert (row["median"], row["min"], row["max"]) == (2.0, 1.0, 4.0)
    assert (row["peer"], row["peer_median"], row["peer_min"], row["peer_max"]) == ("peer", 6.0, 5.0, 7.0)
    assert row["ratio"] == 3.0


@pytest.mark.parametrize(("unit", "limit"), [(FLOPS, 110e9), (BYTES, 10e9)])
def test_a_rate_is_also_given_as_a_share_of_the_best_that_was_reached_of_its_kind(unit, limit):
    line = Line(name="x", run="x", work=Work(amount=1e9, unit=unit))
    row = shared(time_lineup(Lineup(runs={"x": lambda: None}, lines=[line]), 1)[0], LIMITS)
    assert row["rate_unit"] == unit
    assert row["rate"] == pytest.approx(1e3 / row["median"])
    assert row["limit_share"] == pytest.approx(row["rate"] * 1e9 / limit)


def test_of_two_measurements_of_the_limits_the_better_counts_each_for_itself():
    other = Limits(flops=(105e9,), flops_by="N=16", bytes=(9e9, 20e9), bytes_by="a maximum")
    assert LIMITS.or_better(other) == Limits(
        flops=LIMITS.flops, flops_by="N=8", bytes=other.bytes, bytes_by="a maximum"
    )
