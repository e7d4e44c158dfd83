"""A family's rules, and the prefix that some of its files put before every name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from statewell.checkpoints.rules import Entry
from statewell.config.layers import ModelConfig
from statewell.errors import CheckpointError

# what steers a decay or a choice of experts is never narrowed
ALWAYS_FP32 = frozenset(("A_log", "dt_bias", "correction_bias"))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """rules: for a model, over names without the prefix. prefix: what a file may put before them. writes_prefix:
    whether the release does. fp32: parts of our names of what the release keeps in fp32, whatever the other weights
    are."""

    rules: Callable[[ModelConfig], tuple[Entry, ...]]
    prefix: str = ""
    writes_prefix: bool = False
    fp32: tuple[str, ...] = ()

    def plain_names(self, names: Iterable[str]) -> dict[str, str]:
        """The rules' name of every tensor in a file, and the file's. Raises CheckpointError where two are the same."""
        plain: dict[str, str] = {}
        for name in names:
            short = name.removeprefix(self.prefix)
            if short in plain:
                raise CheckpointError(f"The file holds both {name} and {plain[short]}; only one of them can be used.")
            plain[short] = name
        return plain

    def written_name(self, name: str) -> str:
        """A rule's name as the release has it."""
        return self.prefix + name if self.writes_prefix else name

    def stays_fp32(self, target: str) -> bool:
        """Whether a change of dtype passes this tensor of the model over."""
        return not ALWAYS_FP32.union(self.fp32).isdisjoint(target.split("."))
