"""Specs in the library's own language: Lark with JSON schemas in it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from radixserve.errors import UnsupportedGrammarError
from radixserve.grammar.json_schema import prepare_schema
from radixserve.grammar.patterns import portable_pattern
from radixserve.grammar.spec import (
    ChoiceSpec,
    GrammarTextSpec,
    JsonSchemaSpec,
    RegexSpec,
    TaggedTextSpec,
    UnionSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llguidance._lib import JsonCompileOptions

    from radixserve.grammar.spec import Branch, GrammarSpec

_WHITESPACE = r"(?:\x20|\x0A[\x20\x09]{0,32})"
"""One space, or a new line and its indentation: compact and indented JSON, and no more. A model
that is lost in white space comes to an end."""

_SCHEMA_OPTIONS: JsonCompileOptions = {
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_pattern": _WHITESPACE,
    # No \u: a key written with it would escape the schema of its plain spelling.
    "json_allowed_escapes": 'nrbtf\\"',
}


def library_grammar(spec: GrammarSpec, special_tokens: Mapping[str, int]) -> str:
    """Return a spec in the library's language.

    Args:
        special_tokens: Text and id of the tokens that stand for no text.
    Raises:
        UnsupportedGrammarError: a part of it cannot be enforced; names the part.
    """
    match spec:
        case JsonSchemaSpec():
            return LLMatcher.grammar_from_json_schema(
                prepare_schema(spec.schema), overrides=_SCHEMA_OPTIONS
            )
        case RegexSpec():
            return LLMatcher.grammar_from_regex(portable_pattern(spec.pattern))
        case ChoiceSpec():
            return LLMatcher.grammar_from_regex("|".join(_escaped(o) for o in spec.options))
        case GrammarTextSpec():
            return LLMatcher.grammar_from_lark(_lark_of(spec.text))
        case UnionSpec():
            return LLMatcher.grammar_from_lark(_union(spec, special_tokens))
        case TaggedTextSpec():
            return LLMatcher.grammar_from_lark(_tagged_text(spec, special_tokens))


def _escaped(text: str) -> str:
    r"""Return a regex for exactly this text; every character but the plain ones as ``\u{...}``."""
    return "".join(
        char if char.isascii() and char.isalnum() else rf"\u{{{ord(char):x}}}" for char in text
    )


def _lark_of(text: str) -> str:
    try:
        return str(any_to_lark(text))
    except RecursionError:
        raise UnsupportedGrammarError("the grammar is nested too deeply") from None
    except Exception as error:  # the converter raises bare Exceptions for faults of the text
        raise UnsupportedGrammarError(f"the grammar cannot be read: {error}") from None


def _union(spec: UnionSpec, special_tokens: Mapping[str, int]) -> str:
    """``opener branch (separator branch)* closer``"""
    opener = _literal(spec.opener, special_tokens)
    closer = _literal(spec.closer, special_tokens)
    more = ""
    if spec.separator is not None and spec.max_branches != 1:
        bound = "*" if spec.max_branches is None else f"{{0,{spec.max_branches - 1}}}"
        more = f"({_literal(spec.separator, special_tokens)} branch){bound}"
    rules = _branch_rules(spec.branches, special_tokens)
    names = " | ".join(f"branch_{index}" for index in range(len(spec.branches)))
    return f"start: {opener} branch {more} {closer}\nbranch: {names}\n{rules}"


def _branch_rules(branches: Sequence[Branch], special_tokens: Mapping[str, int]) -> str:
    return "\n".join(
        f"branch_{index}: {_literal(branch.begin, special_tokens)} "
        f"{_json(branch.schema)} {_literal(branch.end, special_tokens)}"
        for index, branch in enumerate(branches)
    )


def _tagged_text(spec: TaggedTextSpec, special_tokens: Mapping[str, int]) -> str:
    """Free text that ends at a trigger, which a branch then goes on from, any number of times."""
    lines = ["start: (tagged)* TEXT", r"TEXT: /(.|\n)*/"]
    names = []
    for number, trigger in enumerate(spec.triggers):
        bodies = _bodies_after(spec.branches, trigger, special_tokens)
        if not bodies:
            continue
        names.append(f"tagged_{number}")
        lines.append(_trigger_rule(number, trigger, special_tokens))
        lines.append(f"body_{number}: {' | '.join(f'({body})' for body in bodies)}")
    lines.append(f"tagged: {' | '.join(names)}")
    return "\n".join(lines)


def _bodies_after(
    branches: Sequence[Branch], trigger: str, special_tokens: Mapping[str, int]
) -> list[str]:
    return [
        f"{_literal(branch.begin.removeprefix(trigger), special_tokens)} "
        f"{_json(branch.schema)} {_literal(branch.end, special_tokens)}"
        for branch in branches
        if branch.begin.startswith(trigger)
    ]


def _trigger_rule(number: int, trigger: str, special_tokens: Mapping[str, int]) -> str:
    if trigger in special_tokens:
        return f"tagged_{number}: TEXT <[{special_tokens[trigger]}]> body_{number}"
    head = f"head_{number}[lazy]: /(.|\\n)*/ {json.dumps(trigger)}"
    return f"{head}\ntagged_{number}: head_{number} body_{number}"


def _json(schema: str) -> str:
    options = json.dumps(_SCHEMA_OPTIONS)
    prepared = prepare_schema(schema)
    body = prepared.removeprefix("{")
    return f'%json {{"x-guidance":{options}{"," if body != "}" else ""}{body}'


def _literal(text: str, special_tokens: Mapping[str, int]) -> str:
    """Return a fixed text, in which special tokens are what they stand for."""
    if not text:
        return ""
    names = sorted((name for name in special_tokens if name in text), key=len, reverse=True)
    if not names:
        return json.dumps(text)
    parts = re.split("(" + "|".join(map(re.escape, names)) + ")", text)
    return " ".join(
        f"<[{special_tokens[part]}]>" if part in special_tokens else json.dumps(part)
        for part in parts
        if part
    )
