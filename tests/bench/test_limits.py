"""What the machine is said to do at most."""

from __future__ import annotations

from statewell.bench.limits import BYTES, FLOPS, measure_limits


def test_the_limits_are_plausible_for_any_computer_of_this_century():
    limits = measure_limits(quick=True)
    assert 1e8 < limits.of(FLOPS) < 1e15
    assert 1e8 < limits.of(BYTES) < 1e13
    assert limits.flops_by.startswith("N=")
    assert limits.bytes_by.startswith("a ")
