"""What a spec may hold: the checks its constructor runs."""

from __future__ import annotations

from collections.abc import Sequence

from statewell.errors import ConfigError, nearest


def require_positive(spec: object, *names: str) -> None:
    """Raise ConfigError unless each named field of `spec` is a whole number of at least 1."""
    for name in names:
        value = getattr(spec, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{type(spec).__name__}.{name} is {value!r}; it must be a whole number of at least 1.")


def require_flags(spec: object, *names: str) -> None:
    """Raise ConfigError unless each named field of `spec` is True or False."""
    for name in names:
        value = getattr(spec, name)
        if not isinstance(value, bool):
            raise ConfigError(f"{type(spec).__name__}.{name} is {value!r}; it must be true or false.")


def require_one_of(spec: object, name: str, known: Sequence[str]) -> None:
    """Raise ConfigError unless the named field of `spec` is one of `known`."""
    value = getattr(spec, name)
    if value not in known:
        raise ConfigError(f"{type(spec).__name__}.{name} is {value!r}; {nearest(str(value), known)}")


def require_multiple(spec: object, many: str, few: str) -> None:
    """Raise ConfigError unless field `many` of `spec` is a multiple of field `few`."""
    total, unit = getattr(spec, many), getattr(spec, few)
    if total % unit:
        raise ConfigError(f"{type(spec).__name__}.{many} is {total}; it must be a multiple of {few}, {unit}.")
