"""Training configs from where people write them: a TOML file, `--set key=value`, flags. Errors name where a
value came from.

The file holds TrainConfig's fields at its top level. pydantic is imported only while something is read.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from statewell.config.numbers import parse_count
from statewell.config.run import TrainConfig
from statewell.errors import ConfigError, RequestError, nearest

_FIELDS = tuple(f.name for f in fields(TrainConfig))
_COUNTS = frozenset(f.name for f in fields(TrainConfig) if "int" in str(f.type))
_BUDGET = ("steps", "minutes")


def load_train_config(
    base: TrainConfig,
    *,
    file: Path | None = None,
    settings: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
) -> TrainConfig:
    """`base`, changed by the TOML `file`, then by `settings` ("key=value"), then by `flags`; later ones win.

    A layer that names one kind of budget drops the other kind from the layers before it. Raises ConfigError
    for an unknown key (with the nearest valid one), a wrong type or an impossible value.
    """
    layers: list[tuple[str, Mapping[str, object]]] = []
    if file is not None:
        layers.append((str(file), _read_toml(file)))
    layers.append(("--set", _parse_settings(settings)))
    layers.append(("the command line", flags or {}))

    values = asdict(base)
    origin: dict[str, str] = {}
    for source, layer in layers:
        for key, value in layer.items():
            if key not in _FIELDS:
                raise ConfigError(f"{source}: unknown key '{key}'; {nearest(key, _FIELDS)}")
            values[key] = _count(source, key, value)
            origin[key] = source
        given = [key for key in _BUDGET if layer.get(key) is not None]
        if len(given) == 1:
            values[_BUDGET[1 - _BUDGET.index(given[0])]] = None
    return _validate(values, origin)


def train_config_from_json(document: Mapping[str, object], source: str) -> TrainConfig:
    """The config that `asdict` wrote into a run; `source` names the file in errors."""
    for key in document:
        if key not in _FIELDS:
            raise ConfigError(f"{source}: unknown key '{key}'; {nearest(key, _FIELDS)}")
    return _validate(dict(document), dict.fromkeys(document, source))


def _read_toml(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The config file {file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The config file {file} is not UTF-8 text (byte {error.start}).") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The config file {file} is not TOML: {error}.") from error


def _parse_settings(settings: Sequence[str]) -> dict[str, object]:
    parsed: dict[str, object] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key, text = key.strip(), text.strip()
        if not equals or not key or not text:
            raise ConfigError(f"--set takes key=value, for example --set length=512; '{setting}' is not that.")
        try:
            parsed[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            parsed[key] = text  # a bare word such as 1k
    return parsed


def _count(source: str, key: str, value: object) -> object:
    # counts may be written 64k or 1Ki wherever a whole number is meant
    if key not in _COUNTS or not isinstance(value, str):
        return value
    try:
        return parse_count(value)
    except RequestError as error:
        raise ConfigError(f"{source}: {key} = {value!r} is not a whole number such as 512, 64k or 1Ki.") from error


def _validate(values: Mapping[str, object], origin: Mapping[str, str]) -> TrainConfig:
    from pydantic import TypeAdapter, ValidationError

    # through JSON: strict mode takes a mapping for a dataclass only there, and lax mode would read true as 1
    document = json.dumps(dict(values), default=str)
    try:
        return TypeAdapter(TrainConfig).validate_json(document, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][:1])
        source = origin.get(key, "the defaults")
        reason = first["msg"][0].lower() + first["msg"][1:]
        raise ConfigError(f"{source}: {key} = {first['input']!r} cannot be: {reason}.") from error
