"""What an output must look like, as a caller says it: frozen, hashable, not yet checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

from radixserve.errors import UnsupportedGrammarError


@dataclass(frozen=True, slots=True)
class JsonSchemaSpec:
    """A JSON value that is valid under a schema.

    Args:
        schema: The schema as JSON text; `of` makes it from a parsed one.
    """

    schema: str

    @classmethod
    def of(cls, schema: Any) -> JsonSchemaSpec:
        """Return the spec of a parsed schema.

        Raises:
            UnsupportedGrammarError: it is nested beyond all reason.
        """
        try:
            return cls(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
        except RecursionError:
            raise UnsupportedGrammarError("the schema is nested too deeply") from None


@dataclass(frozen=True, slots=True)
class RegexSpec:
    """A text that a regular expression matches from its beginning to its end."""

    pattern: str


@dataclass(frozen=True, slots=True)
class ChoiceSpec:
    """One of several texts. One may be the beginning of another."""

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GrammarTextSpec:
    """A context-free grammar: Lark (rule `start`), or GBNF (rule `root`, ``::=``)."""

    text: str


@dataclass(frozen=True, slots=True)
class Branch:
    """A fixed text, a JSON value, and a fixed text: one tool's call in some model's dialect.

    Special tokens that `begin` and `end` name, such as ``[TOOL_CALLS]``, are those tokens.
    """

    begin: str
    schema: str
    """Of the value between them, as JSON text."""
    end: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionSpec:
    """One branch, or several in a row:

    ``opener branch (separator branch)* closer``
    """

    branches: tuple[Branch, ...]
    opener: str = ""
    closer: str = ""
    separator: str | None = None
    """Between two branches; None allows one branch only."""
    max_branches: int | None = None
    """Most branches in a row; None is no bound but the separator's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedTextSpec:
    """Free text in which a trigger must be the beginning of a branch.

    Each branch's `begin` starts with one of the triggers. A trigger that is a special token's text
    is that token.
    """

    branches: tuple[Branch, ...]
    triggers: tuple[str, ...]


GrammarSpec: TypeAlias = (
    JsonSchemaSpec | RegexSpec | ChoiceSpec | GrammarTextSpec | UnionSpec | TaggedTextSpec
)

ANY_JSON_OBJECT = JsonSchemaSpec('{"type":"object"}')
"""Any JSON object."""
