"""What the machine is said to do at most."""

from __future__ import annotations

from statewell.bench.limits import BYTES, FLOPS, Work, measure_limits


def test_the_limits_are_plausible_for_any_computer_of_this_century():
    limits = measure_limits(quick=True)
    assert 1e8 < limits.of(Work(amount=1, unit=FLOPS)) < 1e15
    assert 1e8 < limits.of(Work(amount=1, unit=BYTES)) < 1e13
    assert limits.flops_by.startswith("N=")
    assert limits.bytes_by.startswith("a ")
