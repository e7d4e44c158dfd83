"""Speed against peers: `statewell bench`. What this machine can do is measured first, then the cases of a suite.

A suite is a list of cases; each makes its inputs, measures, and is forgotten before the next. Start at `SpeedBench`.
"""

from __future__ import annotations

import ctypes
import json
import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from statewell.architectures import SIZES
from statewell.bench import suite_decode, suite_ops, suite_serve, suite_train
from statewell.bench.alternate import Case, SpeedRow, shared, speed_row
from statewell.bench.limits import BYTES, FLOPS, Limits, measure_limits
from statewell.bench.machine import look
from statewell.bench.peers import PACKAGES, Peer, open_peer
from statewell.errors import RequestError, nearest
from statewell.kernels.registry import instruction_sets, use_instruction_set

SUITES = ("limits", "ops", "decode", "train", "serve")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # mallopt(3)

OnCase = Callable[[str, int, int], None]  # the case that begins, how many went before it, how many there are


@dataclass(frozen=True, kw_only=True)
class SpeedRequest:
    """A benchmark as asked for.

    against: names of peers. rounds: timed ones, each suite's own when None. quick: small shapes and few rounds, to see
    that it works. only: cases whose name contains it. sizes, tokens: of training, the usual ones when empty.
    instructions: one of the compiled sets instead of the best. Raises RequestError for what cannot be.
    """

    suite: str
    against: tuple[str, ...] = ()
    rounds: int | None = None
    quick: bool = False
    only: str = ""
    sizes: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    instructions: str | None = None
    command: str = "statewell bench"

    def __post_init__(self) -> None:
        if self.suite not in SUITES:
            raise RequestError(f"'{self.suite}' is not a suite; {nearest(self.suite, SUITES)}")
        if self.rounds is not None and self.rounds < 1:
            raise RequestError(f"--rounds is {self.rounds}; a median takes 1 or more.")
        if (self.sizes or self.tokens) and self.suite != "train":
            raise RequestError(f"--sizes and --tokens belong to train; {self.suite} has its own shapes.")
        if any(count < 2 for count in self.tokens):
            raise RequestError(f"--tokens has {min(self.tokens)}; a training step takes 2 or more.")
        for size in self.sizes:
            if size not in SIZES:
                raise RequestError(f"'{size}' is not a size; {nearest(size, SIZES)}")
        if self.suite == "limits" and self.against:
            raise RequestError("limits are of this machine alone; leave --against out.")
        if self.suite == "serve" and self.against:
            raise RequestError("serve compares the engine with itself; leave --against out.")


class SpeedBench:
    """A benchmark that is ready to run: its peers are here, and each has a part in it.

    Raises RequestError for an unknown peer, one without a part in the suite, or an `only` that no case has;
    MissingExtraError for one that is not installed.
    """

    def __init__(self, request: SpeedRequest) -> None:
        self.request = request
        peers = [open_peer(name) for name in dict.fromkeys(request.against)]
        for peer in peers:
            if not _has_part(peer, request.suite):
                able = [name for name in ("transformers", "torch") if name != peer.name]
                raise RequestError(
                    f"'{peer.name}' has nothing to time in {request.suite}; leave it out, or name {' or '.join(able)}."
                )
        cases = _cases(request, peers)
        self.cases = [case for case in cases if request.only in case.name]
        if cases and not self.cases:
            raise RequestError(f"--only '{request.only}' is in no case of {request.suite}, such as '{cases[0].name}'.")
        self._limits: Limits | None = None
        self._measured: list[SpeedRow] = []

    def run(self, on_case: OnCase) -> None:
        """Measure the limits, every case, and the limits again; `rows` grows, so that an interrupt loses one case."""
        _keep_freed_memory()
        total = len(self.cases) + 2
        on_case("the limits of this machine", 0, total)
        self._limits = measure_limits(self.request.quick)
        with ExitStack() as stack:
            if self.request.instructions is not None:
                stack.enter_context(use_instruction_set(self.request.instructions))
            for index, case in enumerate(self.cases):
                on_case(case.name, 1 + index, total)
                self._measured += case.measure()
        on_case("the limits again", total - 1, total)
        self._limits = self._limits.or_better(measure_limits(self.request.quick))

    @property
    def limits(self) -> list[SpeedRow]:
        """What this machine can do, as rows; none before anything was measured."""
        return [] if self._limits is None else limit_rows(self._limits)

    @property
    def rows(self) -> list[SpeedRow]:
        """What was measured so far."""
        if self._limits is None or self.request.suite == "limits":
            return self.limits
        return [shared(row, self._limits) for row in self._measured]

    def document(self) -> dict[str, object]:
        """Everything as one JSON document: rows, limits, and how and on what they were measured."""
        sets = instruction_sets()
        return {
            "suite": self.request.suite,
            **circumstances(self.request.command, self.request.against),
            "kernels": self.request.instructions or (sets[0] if sets else "reference"),
            "limits": self.limits,
            "rows": self.rows,
        }


def _keep_freed_memory() -> None:
    """Let the C library keep what is freed, so that no side pays for pages that another gave back to the system.

    After a peer's gigabytes were returned, ours took twice as long for page faults alone. Only glibc has the call.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, -1)
        library.mallopt(M_MMAP_MAX, 0)


def circumstances(command: str, against: Sequence[str] = ()) -> dict[str, object]:
    """How, when and on what something was measured: what every result starts with. against: peers that took part."""
    machine = look()
    packages = [PACKAGES[name] for name in against if name in PACKAGES]
    return {
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {"cpu": machine.cpu, "cores": machine.cores, "instructions": machine.instructions},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{package: version(package) for package in packages},
        },
        "threads": torch.get_num_threads(),
    }


def _cases(request: SpeedRequest, peers: Sequence[Peer]) -> list[Case]:
    if request.suite == "ops":
        return suite_ops.cases(peers, request.rounds, request.quick)
    if request.suite == "decode":
        return suite_decode.cases(peers, request.rounds, request.quick)
    if request.suite == "train":
        return suite_train.cases(peers, request.rounds, request.quick, request.sizes, request.tokens)
    if request.suite == "serve":
        return suite_serve.cases(request.rounds, request.quick)
    return []


def _has_part(peer: Peer, suite: str) -> bool:
    if suite == "train":
        return peer.gpt2 is not None
    return bool(peer.many) if suite == "ops" else bool(peer.steps) or "attention" in peer.many


def write(document: dict[str, object], file: Path) -> None:
    """The document into a file, with its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def limit_rows(limits: Limits) -> list[SpeedRow]:
    """The two limits as rows, in their own units."""
    products, reads = ([value / 1e9 for value in values] for values in (limits.flops, limits.bytes))
    return [
        speed_row(f"fp32 product of torch, {limits.flops_by}", FLOPS, products),
        speed_row(f"reading memory, by {limits.bytes_by}", BYTES, reads),
    ]
