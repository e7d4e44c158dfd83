"""The proof that a file and a model fit: every tensor of the file is used or ignored with a reason, every tensor of the
model is filled once. Names only; shapes and dtypes are checked when the rules run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from statewell.checkpoints.rules import AsIs, Either, Entry, Ignore, Rename, Repeat, Rule
from statewell.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """rules: those to run. repeats: second copies in the file, to be compared. ignored: every tensor of the file that
    no rule uses, with the reason."""

    rules: tuple[Rule, ...]
    repeats: tuple[Repeat, ...]
    ignored: dict[str, str]


def nowhere_else(target: str) -> str | None:
    """No tensor of a family's rules may be missing from the model."""
    return None


def resolve(
    entries: Iterable[Entry],
    names: Collection[str],
    targets: Collection[str],
    elsewhere: Callable[[str], str | None] = nowhere_else,
) -> Coverage:
    """Choose among the alternatives and prove coverage.

    names: of the file's tensors. targets: of the model's. elsewhere: why a target is not in this model (a layer left
    out, experts that stay on disk), or None where it has to be. Raises CheckpointError naming the first tensor that is
    missing, unused or unfilled.
    """
    rules: list[Rule] = []
    ignored: dict[str, str] = {}
    patterns: list[Ignore] = []
    repeats: list[Repeat] = []
    for entry in entries:
        if isinstance(entry, Ignore):
            patterns.append(entry)
            continue
        if isinstance(entry, Repeat):
            if entry.source in names:
                repeats.append(entry)
                ignored[entry.source] = f"the same as {entry.original}"
            continue
        options = entry.options if isinstance(entry, Either) else ((entry,),)
        reason = elsewhere(options[0][0].targets[0])
        if reason is None:
            rules += _choose(options, names, targets)
        else:
            everything = (source for option in options for rule in option for source in rule.sources)
            ignored |= {source: reason for source in everything if source in names}
    used = _require_sources(rules, names)
    _require_targets(rules, targets)
    ignored |= _ignored_by_pattern(patterns, [name for name in names if name not in used and name not in ignored])
    return Coverage(rules=tuple(rules), repeats=tuple(repeats), ignored=ignored)


def writing_rules(entries: Iterable[Entry], targets: Collection[str]) -> tuple[Rule, ...]:
    """The rules that write a model with these tensors: of alternatives the first that fits it."""
    rules: list[Rule] = []
    repeats: list[Repeat] = []
    for entry in entries:
        if isinstance(entry, Repeat):
            repeats.append(entry)
        elif not isinstance(entry, Ignore):
            rules += _fitting(entry.options if isinstance(entry, Either) else ((entry,),), targets)[0]
    _require_targets(rules, targets)
    return (*rules, *(_second_copy(repeat, rules) for repeat in repeats if repeat.written))


def _second_copy(repeat: Repeat, rules: Iterable[Rule]) -> Rule:
    original = next(rule for rule in rules if rule.sources == (repeat.original,))
    return Rename(repeat.source, original.targets[0], original.form if isinstance(original, Rename) else AsIs())


def _fitting(options: tuple[tuple[Rule, ...], ...], targets: Collection[str]) -> list[tuple[Rule, ...]]:
    """The options that fill tensors the model has; all of them where none does, for the error that follows."""
    fitting = [option for option in options if all(name in targets for rule in option for name in rule.targets)]
    return fitting or list(options)


def _choose(
    options: tuple[tuple[Rule, ...], ...], names: Collection[str], targets: Collection[str]
) -> tuple[Rule, ...]:
    """The fitting option with the largest share of its tensors in the file; the first of equals."""

    def share(option: tuple[Rule, ...]) -> float:
        sources = [source for rule in option for source in rule.sources]
        return sum(source in names for source in sources) / len(sources)

    return max(_fitting(options, targets), key=share)


def _require_sources(rules: Iterable[Rule], names: Collection[str]) -> set[str]:
    used: set[str] = set()
    missing: list[str] = []
    for rule in rules:
        sources = rule.sources
        used.update(sources)
        missing += [source for source in sources if source not in names]
    if missing:
        raise CheckpointError(f"{len(missing):,} of the model's tensors not in the file, first: {missing[0]}.")
    return used


def _require_targets(rules: Iterable[Rule], targets: Collection[str]) -> None:
    filled = [target for rule in rules for target in rule.targets]
    unfilled = sorted(set(targets) - set(filled))
    unknown = sorted(set(filled) - set(targets))
    if unfilled or unknown or len(filled) != len(set(filled)):
        first = (unfilled or unknown or sorted(name for name in filled if filled.count(name) > 1))[0]
        raise CheckpointError(
            f"The rules and the model do not match: {len(unfilled):,} tensors are not filled, {len(unknown):,} are not "
            f"the model's, first: {first}. That is a mistake in statewell, please report it."
        )


def _ignored_by_pattern(patterns: list[Ignore], left: list[str]) -> dict[str, str]:
    compiled = [(re.compile(one.pattern), one.reason) for one in patterns]
    ignored: dict[str, str] = {}
    unused: list[str] = []
    for name in left:
        reason = next((reason for pattern, reason in compiled if pattern.fullmatch(name)), None)
        if reason is None:
            unused.append(name)
        else:
            ignored[name] = reason
    if unused:
        raise CheckpointError(
            f"{len(unused):,} of the file's tensors not used, first: {min(unused)}; its config.json is another model's."
        )
    return ignored
