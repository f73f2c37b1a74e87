"""Results of many runs in a file, a line each: what is there is not run again."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import PydanticUserError, TypeAdapter
from pydantic_core import to_jsonable_python

from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self, TextIO

    from radixserve.frontend.program import Program


class Checkpoint:
    """A file of results, or none.

    An item is known by its content, not by its place, so items may be added and moved in between.

    Args:
        known: Results by place, read from the file.
        keys: Of the items, by place.
        file: New results are appended to it.
    """

    def __init__(self, known: dict[int, Any], keys: Sequence[str], file: TextIO | None) -> None:
        self.known = known
        self._keys = keys
        self._file = file

    @classmethod
    def open(
        cls, path: str | FilePath | None, program: Program[Any, Any], items: Sequence[Any]
    ) -> Checkpoint:
        """Read what the file has, and open it for more.

        A line that was not written to its end is dropped, and written anew.

        Raises:
            ConfigError: a line is no result of this program.
        """
        if path is None:
            return cls({}, [], None)
        keys = _keys(program.name, items)
        places = {key: index for index, key in enumerate(keys)}
        adapter = _adapter(program)
        file = FilePath(path)
        lines = _whole_lines(file)
        known = {}
        for number, text in enumerate(lines, 1):
            try:
                line = json.loads(text)
                index = places.get(line["key"])
                if index is not None:
                    known[index] = adapter.validate_python(line["value"])
            except (ValueError, KeyError, TypeError) as failed:
                raise ConfigError(
                    f"{file}, line {number}, is no result of {program.name}: {failed}"
                ) from None
        return cls(known, keys, file.open("a", encoding="utf-8"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()

    def keep(self, index: int, value: Any) -> None:
        """Write a result down, in one piece."""
        if self._file is None:
            return
        line = {"key": self._keys[index], "value": to_jsonable_python(value)}
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()


def _keys(name: str, items: Sequence[Any]) -> list[str]:
    """Return a key for each item: its content, and how many equal ones came before."""
    seen: Counter[str] = Counter()
    keys = []
    for item in items:
        text = json.dumps(item, sort_keys=True, ensure_ascii=False, default=repr)
        digest = hashlib.sha256(f"{name}|{text}".encode()).hexdigest()[:24]
        keys.append(f"{digest}-{seen[digest]}")
        seen[digest] += 1
    return keys


def _whole_lines(file: FilePath) -> list[str]:
    """Return the complete lines; cut off the rest of one that was not. Mutates: the file."""
    if not file.exists():
        return []
    content = file.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        with file.open("r+b") as out:
            out.truncate(end)
    return content[:end].decode("utf-8").splitlines()


def _adapter(program: Program[Any, Any]) -> TypeAdapter[Any]:
    """Return what reads the program's results back: by its return annotation, where it has one."""
    try:
        kind = get_type_hints(program.__wrapped__).get("return", Any)  # type: ignore[attr-defined]
        return TypeAdapter(kind)
    except (NameError, TypeError, PydanticUserError):
        return TypeAdapter(Any)
