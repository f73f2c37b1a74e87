"""What a running program tells whoever streams it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a named variable's text."""

    path: str
    name: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Value:
    """A named variable has its value."""

    path: str
    name: str | None
    value: Any


@dataclass(frozen=True, slots=True)
class Partial:
    """As much of a JSON value as can be read already."""

    path: str
    name: str | None
    value: Any


@dataclass(frozen=True, slots=True)
class Restart:
    """A variable is written anew: forget its text so far."""

    path: str
    name: str | None


@dataclass(frozen=True, slots=True)
class ToolStart:
    """The model calls a tool."""

    path: str
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """A tool has answered."""

    path: str
    tool: str
    result: str


@dataclass(frozen=True, slots=True)
class Result:
    """The program has returned. The last event, unless it failed."""

    value: Any


Event: TypeAlias = Delta | Value | Partial | Restart | ToolStart | ToolEnd | Result
