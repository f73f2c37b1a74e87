"""Settings from a TOML file and from dotted overrides.

    [engine.cache]                 -> ServerConfig.engine.cache.block_size
    block_size = 32

    {"engine.cache.block_size": 32}   says the same, and wins over the file

Tables mirror the dataclasses of `config`, field for field; there is nothing else to know.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from radixserve.config import ServerConfig
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

ConfigT = TypeVar("ConfigT")

_TYPE_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    dict: "a table",
    list: "a list",
}


def load_config(
    path: Path | None = None, overrides: Mapping[str, object] | None = None
) -> ServerConfig:
    """Return the settings: defaults, then the file, then the overrides.

    Args:
        path: A TOML file, or None for the defaults alone.
        overrides: Dotted key -> value, as in ``{"engine.cache.block_size": 32}``.
    Raises:
        ConfigError: the file cannot be read, a key is unknown, or a value does not fit; the message
            names the key and what is allowed.
    """
    table = _read_toml(path) if path is not None else {}
    try:
        build_config(ServerConfig, table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    for key, value in (overrides or {}).items():
        _put(table, key, value)
    return build_config(ServerConfig, table)


def build_config(cls: type[ConfigT], table: Mapping[str, object], *, prefix: str = "") -> ConfigT:
    """Return a `cls` whose fields come from `table`, nested tables included.

    Args:
        prefix: The table's own dotted name with a closing dot; it only serves messages.
    Raises:
        ConfigError: a key is unknown or a value does not fit.
    """
    fields = typing.get_type_hints(cls)
    for name in table:
        if name not in fields:
            allowed = ", ".join(fields)
            raise ConfigError(f"{prefix}{name} is not a setting; allowed here: {allowed}")
    values = {name: _convert(fields[name], table[name], prefix + name) for name in table}
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error


def config_keys(cls: type = ServerConfig, *, prefix: str = "") -> Iterator[str]:
    """Yield the dotted key of every setting, in the order of the dataclasses."""
    for name, kind in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(kind):
            yield from config_keys(typing.cast(type, kind), prefix=f"{prefix}{name}.")
        else:
            yield prefix + name


def parse_override(text: str) -> tuple[str, object]:
    """Return the key and the value of one ``key=value``, the value read as TOML.

    What is not TOML is taken as text, so that quotes are needed only where text looks like a number
    or like true and false.

    Raises:
        ConfigError: there is no ``=`` or no key.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not key or not equals:
        raise ConfigError(f"an override is key=value, as in engine.cache.block_size=32; got {text}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _put(table: dict[str, Any], key: str, value: object) -> None:
    *parents, last = key.split(".")
    for name in parents:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{key} is not a setting: {name} is not a table")
    table[last] = value


def _convert(kind: Any, value: object, key: str) -> object:
    """Return `value` as a field of type `kind`; `key` only serves messages."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None and types.NoneType in options:
        return None
    (wanted,) = (option for option in options if option is not types.NoneType)
    if dataclasses.is_dataclass(wanted):
        return build_config(typing.cast(type, wanted), _checked(dict, value, key), prefix=f"{key}.")
    if typing.get_origin(wanted) is Literal:
        return _one_of(typing.get_args(wanted), value, key)
    if typing.get_origin(wanted) is tuple:
        given = value if isinstance(value, tuple) else _checked(list, value, key)
        return tuple(_checked(typing.get_args(wanted)[0], each, key) for each in given)
    if wanted is float and type(value) is int:
        return float(value)
    return _checked(wanted, value, key)


def _one_of(allowed: tuple[object, ...], value: object, key: str) -> object:
    if value not in allowed:
        words = " or ".join(str(option) for option in allowed)
        raise ConfigError(f"{key} must be {words}; got {value!r}")
    return value


def _checked(wanted: type, value: object, key: str) -> Any:
    # `type() is`, not `isinstance`: true would pass for the number 1. The value itself is left out
    # of the message, since a key may be a secret.
    if type(value) is not wanted:
        got = _TYPE_WORDS.get(type(value), f"a {type(value).__name__}")
        raise ConfigError(f"{key} must be {_TYPE_WORDS[wanted]}, not {got}")
    return value
