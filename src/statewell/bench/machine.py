"""What this computer offers: cores, free memory, and the processor instructions that matter for speed.

Read from /proc and the control groups, without torch. A limit of a container counts, not only the machine's
memory. What cannot be read is None, never a guess. Start at `look`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Instruction flags as /proc/cpuinfo spells them (x86 `flags`, Arm `Features`), in the order they are shown.
INSTRUCTIONS = (
    "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16",
)  # fmt: skip
BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# A cgroup v1 group without a limit says the largest multiple of a page below 2^63.
UNLIMITED = 1 << 60


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One computer as this process sees it.

    cores: logical ones this process may run on (affinity and CPU quota). total_bytes, free_bytes: of memory,
    the smaller of the machine's and every control group's above this process. limited_by_group: a group's
    limit is the smaller one. instructions: those of `INSTRUCTIONS` the processor has, None where it cannot be
    asked.
    """

    cpu: str
    cores: int
    total_bytes: int | None
    free_bytes: int | None
    limited_by_group: bool
    instructions: tuple[str, ...] | None

    @property
    def bf16(self) -> bool | None:
        """Whether bf16 matrix products have instructions here; None when unknown."""
        return None if self.instructions is None else bool(BF16.intersection(self.instructions))


def look(root: Path = Path("/")) -> Machine:
    """Describe this computer; `root` is where /proc and /sys lie, another folder in tests."""
    cpuinfo = _cpuinfo(root)
    total, available = _meminfo(root)
    group_limit, group_free = _group_memory(root)
    flags = (cpuinfo.get("flags") or cpuinfo.get("Features") or "").split()
    return Machine(
        cpu=cpuinfo.get("model name") or platform.processor() or platform.machine(),
        cores=_cores(root),
        total_bytes=_smaller(total, group_limit),
        free_bytes=_smaller(available, group_free),
        limited_by_group=group_free is not None and (available is None or group_free < available),
        instructions=tuple(name for name in INSTRUCTIONS if name in flags) if flags else None,
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _smaller(first: int | None, second: int | None) -> int | None:
    known = [value for value in (first, second) if value is not None]
    return min(known, default=None)


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo."""
    entries: dict[str, str] = {}
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            entries.setdefault(name.strip(), value.strip())
    return entries


def _meminfo(root: Path) -> tuple[int | None, int | None]:
    """(total, available) bytes of the machine."""
    kib = {}
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if value.strip().endswith("kB"):
            kib[name] = int(value.split()[0]) * 1024
    return kib.get("MemTotal"), kib.get("MemAvailable")


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """(folder, is version 2) of every control group above this process for `controller`, innermost first."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        unified = controllers == ""
        if not unified and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" if unified else root / "sys/fs/cgroup" / controllers
        if unified and not (base / "cgroup.controllers").exists():
            base = base / "unified"
        inner = base / path.lstrip("/")
        # Inside a container the path may be the host's: folders that do not exist here are read as absent.
        for folder in (inner, *inner.parents):
            yield folder, unified
            if folder == base:
                break


def _group_memory(root: Path) -> tuple[int | None, int | None]:
    """The tightest (limit, limit - what cannot be given back) of the groups around this process, in bytes."""
    limit = free = None
    for folder, unified in _groups(root, "memory"):
        names = ("memory.max", "memory.current") if unified else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        most, used = (_number(folder / name) for name in names)
        if most is None or used is None or most >= UNLIMITED:
            continue
        limit = _smaller(limit, most)
        free = _smaller(free, max(0, most - used + _reclaimable(folder)))
    return limit, free


def _reclaimable(folder: Path) -> int:
    """Bytes of file cache that count as used by the group; the kernel drops them when memory is short."""
    stat = dict(line.split(" ", 1) for line in (_read(folder / "memory.stat") or "").splitlines() if " " in line)
    # version 1 sums a group with its children in total_*; version 2 always does
    return int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))


def _number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.isdecimal() else None


def _cores(root: Path) -> int:
    """Logical cores by affinity, fewer under a CPU quota, at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    for folder, unified in _groups(root, "cpu"):
        if unified:
            quota, _, period = (_read(folder / "cpu.max") or "max").partition(" ")
        else:
            quota, period = (_read(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
        quota, period = quota.strip(), period.strip()
        if quota.isdecimal() and period.isdecimal() and int(period):
            cores = min(cores, max(1, -(-int(quota) // int(period))))
    return cores
