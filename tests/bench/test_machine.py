"""Reading a computer from invented /proc and /sys trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from statewell.bench.machine import Machine, look

GIB = 1 << 30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1000000 kB\nMemAvailable:    8388608 kB\n"
X86 = (
    "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu sse avx avx2 fma avx512f\n\n"
    "processor\t: 1\nmodel name\t: Other\n"
)


def machine(root: Path, **files: str) -> Machine:
    """`look` at a tree of `files`, path to text."""
    for name, text in {"proc/meminfo": MEMINFO, "proc/cpuinfo": X86, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return look(root)


def test_without_groups_the_machine_itself_is_the_limit(tmp_path):
    found = machine(tmp_path)
    assert found.total_bytes == 16 * GIB
    assert found.free_bytes == 8 * GIB
    assert not found.limited_by_group
    assert found.cpu == "Some CPU"


def test_a_version_2_group_with_less_room_is_the_limit(tmp_path):
    found = machine(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/box/inner\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            "sys/fs/cgroup/box/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/box/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/box/inner/memory.max": "max\n",
            "sys/fs/cgroup/box/inner/memory.current": f"{GIB}\n",
        },
    )
    assert found.total_bytes == 2 * GIB
    assert found.free_bytes == GIB
    assert found.limited_by_group


def test_file_cache_of_a_group_counts_as_free(tmp_path):
    found = machine(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cgroup.controllers": "memory\n",
            "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}\n",
        },
    )
    assert found.free_bytes == 3 * GIB


def test_a_version_1_group_is_read_with_its_sums(tmp_path):
    found = machine(
        tmp_path,
        **{
            "proc/self/cgroup": "5:cpuset:/\n4:memory:/docker/abc\n0::/\n",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/docker/abc/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
        },
    )
    assert found.total_bytes == 3 * GIB
    assert found.free_bytes == 2 * GIB


def test_a_group_path_of_the_host_falls_back_to_the_groups_that_exist_here(tmp_path):
    found = machine(
        tmp_path,
        **{
            "proc/self/cgroup": "4:memory:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
        },
    )
    assert found.free_bytes == GIB


def test_a_version_1_group_without_a_limit_does_not_count(tmp_path):
    found = machine(
        tmp_path,
        **{
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
        },
    )
    assert found.free_bytes == 8 * GIB
    assert not found.limited_by_group


def test_a_group_over_its_limit_has_nothing_free(tmp_path):
    found = machine(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cgroup.controllers": "memory\n",
            "sys/fs/cgroup/memory.max": f"{GIB}\n",
            "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
        },
    )
    assert found.free_bytes == 0


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu\n",
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
        },
        {
            "proc/self/cgroup": "1:cpu,cpuacct:/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    ],
    ids=["version 2", "version 1"],
)
def test_a_cpu_quota_leaves_at_least_one_core(tmp_path, files):
    assert machine(tmp_path, **files).cores == 1


@pytest.mark.parametrize("quota", ["max 100000\n", "-1\n", "\n"])
def test_without_a_quota_every_core_of_this_process_counts(tmp_path, quota):
    found = machine(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu\n",
            "sys/fs/cgroup/cpu.max": quota,
        },
    )
    assert found.cores == machine(tmp_path / "bare").cores >= 1


def test_instructions_for_bf16_are_recognised(tmp_path):
    assert machine(tmp_path).bf16 is False
    assert machine(tmp_path).instructions == ("avx", "avx2", "fma", "avx512f")
    arm = machine(tmp_path / "arm", **{"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd bf16\n"})
    assert arm.instructions == ("asimd", "bf16")
    assert arm.bf16 is True
    assert machine(tmp_path / "amd", **{"proc/cpuinfo": "flags : avx512f avx512_bf16\n"}).bf16 is True


def test_what_cannot_be_read_is_unknown_and_never_a_guess(tmp_path):
    found = look(tmp_path)
    assert found.total_bytes is None
    assert found.free_bytes is None
    assert found.instructions is None
    assert found.bf16 is None
    assert found.cores >= 1


def test_this_computer_can_be_looked_at():
    found = look()
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert found.free_bytes is None or found.total_bytes is None or 0 <= found.free_bytes <= found.total_bytes
