"""Rows of JSON Lines files, plain or gzip, whose complaints name the file and the line."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve.errors import ConfigError
from radixserve.types import pack_ids

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from radixserve.types import PackedIds

GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Row:
    """One JSON object of a file, or an object within it."""

    path: Path
    line: int
    fields: dict[str, Any]

    def error(self, why: str) -> ConfigError:
        """Return the error that says what is wrong with this row."""
        return ConfigError(f"{self.path.name}, line {self.line}: {why}")

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number; `default` where the field is missing, if there is one."""
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{name} must be a number; got {value!r}")
        return value

    def length(self, name: str, default: int | None = None) -> int:
        """Return a count of tokens or characters, at least 0."""
        value = self.number(name, default)
        if value != int(value) or value < 0:
            raise self.error(f"{name} must be a whole number from 0 on; got {value!r}")
        return int(value)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string."""
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            raise self.error(f"{name} must be a string; got {value!r}")
        return value

    def items(self, name: str) -> list[Any]:
        """Return a list."""
        value = self.fields.get(name)
        if not isinstance(value, list):
            raise self.error(f"{name} must be a list; got {value!r}")
        return value

    def rows(self, name: str) -> list[Row]:
        """Return a list of objects, as rows of the same line."""
        rows = []
        for value in self.items(name):
            if not isinstance(value, dict):
                raise self.error(f"{name} must be a list of objects; got {value!r}")
            rows.append(Row(self.path, self.line, value))
        return rows

    def ids(self, name: str) -> PackedIds:
        """Return a list of ids, packed."""
        return self.pack(self.items(name), name)

    def pack(self, ids: list[Any], name: str) -> PackedIds:
        """Return `ids` packed; `name` is the field that they come from."""
        try:
            return pack_ids(ids)
        except (TypeError, OverflowError):
            raise self.error(f"{name} must hold whole numbers of 32 bits from 0 on") from None


def open_text(path: Path) -> io.TextIOBase:
    """Open a text file, through gzip if that is what it is.

    Raises:
        ConfigError: it cannot be opened.
    """
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == GZIP_MAGIC
        if is_gzip:
            return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8")
        return path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise ConfigError(f"cannot read the trace {path}: {error.strerror}") from error


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers from 1.

    Raises:
        ConfigError: the file cannot be read to its end.
    """
    with open_text(path) as file:
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the trace {path}: {error}") from error


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the objects of a JSON Lines file.

    Raises:
        ConfigError: a line is not a JSON object; it is named.
    """
    for number, line in read_lines(path):
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path.name}, line {number}: not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ConfigError(f"{path.name}, line {number}: not a JSON object")
        yield Row(path, number, fields)
