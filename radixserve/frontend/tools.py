"""Python functions as tools: what a model is told of them, and how it calls them.

def search(query: str, limit: int = 3) -> list[str]:
    '''Look a fact up.

    Args:
        query: What to look for.
    '''

The description is the docstring's first paragraph, the schema comes from the signature, and the
parameters' own descriptions from a section `Args`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import re
import time
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import Field, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic_core import to_jsonable_python

from radixserve.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

UNKNOWN_PAUSE_S = 2.0
"""A tool that has never been called is taken to need so long."""
LONGEST_PAUSE_S = 60.0
MAX_CALLS = 8
"""In one step: a model that has lost its way must not call on and on."""
REMEMBERED = 32
"""Calls of a tool whose durations are remembered."""
_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters):\s*$")
_ARGUMENT = re.compile(r"^\s+(\w+)(?:\s*\([^)]*\))?:\s*(.+)$")

_durations: dict[str, deque[float]] = {}
"""By the function's full name: programs that use the same tool learn from each other."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One function."""

    name: str
    description: str
    arguments: type
    """A dataclass with a field for each parameter; those with defaults may be left out."""
    run: Callable[..., Any]
    key: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Tool:
        """Return a function as a tool.

        Raises:
            InvalidRequestError: a parameter has no type, or one that JSON cannot have.
        """
        name = getattr(function, "__name__", "")
        if not name.isidentifier():
            raise InvalidRequestError("a tool needs a name: give a function", param="tools")
        description, described = _parse_doc(inspect.getdoc(function) or "")
        key = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', name)}"
        return cls(name, description, _arguments_of(function, name, described), function, key)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        schema = TypeAdapter(self.arguments).json_schema()
        schema.pop("title", None)
        return schema

    def describe(self) -> str:
        """Return what the model is told, on one line."""
        told = {"name": self.name, "description": self.description, "parameters": self.schema}
        return json.dumps(told, ensure_ascii=False)

    @property
    def pause_s(self) -> float:
        """How long a call of it takes, by those before: their median."""
        known = _durations.get(self.key)
        return min(median(known), LONGEST_PAUSE_S) if known else UNKNOWN_PAUSE_S

    def given(self, arguments: Any) -> dict[str, Any]:
        """Return the arguments that the model has given, by name."""
        return {
            field.name: value
            for field in dataclasses.fields(arguments)
            if (value := getattr(arguments, field.name)) is not LEFT_OUT
        }

    async def call(self, arguments: Any) -> Any:
        """Call the function and return what it returns; one that is not async runs in a thread.

        Args:
            arguments: An instance of `arguments`.
        Raises:
            Exception: what the function raises.
        """
        given = self.given(arguments)
        started = time.perf_counter()
        try:
            if inspect.iscoroutinefunction(self.run):
                return await self.run(**given)
            returned = await asyncio.to_thread(self.run, **given)
            return await _finished(returned)
        finally:
            durations = _durations.setdefault(self.key, deque(maxlen=REMEMBERED))
            durations.append(time.perf_counter() - started)


async def _finished(returned: Awaitable[Any] | Any) -> Any:
    """A plain function may return something to wait for, such as a partial of an async one."""
    return await returned if inspect.isawaitable(returned) else returned


class _LeftOut:
    """In the place of an argument that the model has not given."""

    def __repr__(self) -> str:
        return "(left out)"


LEFT_OUT = _LeftOut()


class Toolbox:
    """Some tools, and the shape of one step with them.

    Args:
        functions: Typed functions with different names.
        result: The type of the final answer.
        parallel: Whether one step may call several.
    Raises:
        InvalidRequestError: there are none, two have one name, or one cannot be a tool.
    """

    def __init__(
        self, functions: Sequence[Callable[..., Any]], result: Any, *, parallel: bool
    ) -> None:
        self.tools = {tool.name: tool for tool in map(Tool.of, functions)}
        if not self.tools:
            raise InvalidRequestError("act needs at least one tool", param="tools")
        if len(self.tools) < len(functions):
            raise InvalidRequestError("two tools have the same name", param="tools")
        self._parallel = parallel
        self.step: Any = _step_type(list(self.tools.values()), result, parallel=parallel)
        """Calls or an answer: what one generation writes."""

    @property
    def pause_s(self) -> float:
        """How long the next calls take, at most, by those before."""
        return max(tool.pause_s for tool in self.tools.values())

    def instructions(self) -> str:
        """Return what the model is told before its first step."""
        lines = "\n".join(tool.describe() for tool in self.tools.values())
        several = "one or more tools" if self._parallel else "a tool"
        return (
            f"You can use these tools:\n{lines}\n\n"
            "Write one JSON object and nothing else. "
            f'To use {several}: {{"calls": [{{"tool": "NAME", "arguments": {{...}}}}]}}. '
            "The results come in the next message. "
            'To give the final answer: {"answer": ...}.'
        )


def _step_type(tools: Sequence[Tool], result: Any, *, parallel: bool) -> Any:
    calls = [
        dataclasses.make_dataclass(
            f"Call_{tool.name}",
            [("tool", Literal[tool.name]), ("arguments", tool.arguments)],
        )
        for tool in tools
    ]
    call: Any = calls[0]
    for other in calls[1:]:
        call = call | other
    listed = Annotated[list[call], Field(min_length=1, max_length=MAX_CALLS if parallel else 1)]
    making_calls: Any = dataclasses.make_dataclass("Calls", [("calls", listed)])
    answering: Any = dataclasses.make_dataclass("Answer", [("answer", result)])
    return making_calls | answering


def _arguments_of(function: Callable[..., Any], name: str, described: dict[str, str]) -> type:
    hints = get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY or parameter.name not in hints:
            raise InvalidRequestError(
                f"{name}: parameter {parameter.name!r} must have a type and be known by its name",
                param="tools",
            )
        kind = hints[parameter.name]
        if parameter.name in described:
            kind = Annotated[kind, Field(description=described[parameter.name])]
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            left_out = dataclasses.field(default_factory=lambda: LEFT_OUT)
            fields.append((parameter.name, kind, left_out))
    arguments = dataclasses.make_dataclass(f"{name}_arguments", fields, kw_only=True)
    try:
        TypeAdapter(arguments).json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError) as failed:
        raise InvalidRequestError(f"{name}: {failed.message}", param="tools") from None
    return arguments


def _parse_doc(doc: str) -> tuple[str, dict[str, str]]:
    """Return a docstring's first paragraph, and what it says of each parameter."""
    first = " ".join(doc.split("\n\n")[0].split())
    described: dict[str, str] = {}
    is_inside = False
    for line in doc.splitlines():
        if _SECTION.match(line):
            is_inside = True
        elif is_inside and (found := _ARGUMENT.match(line)):
            described[found[1]] = found[2].strip()
        elif is_inside and line.strip() and not line.startswith(" "):
            is_inside = False
    return first, described


def shown(value: Any) -> str:
    """Return what a tool has returned, as text for the model."""
    if isinstance(value, str):
        return value
    return json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)
