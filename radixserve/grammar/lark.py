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
    from collections.abc import Mapping

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


def library_grammar(
    spec: GrammarSpec, special_tokens: Mapping[str, int], *, rewrites: bool = False
) -> str:
    """Return a spec in the library's language.

    Args:
        special_tokens: Text and id of the tokens that stand for no text.
        rewrites: Say in other words what schemas say in words that the library does not know.
    Raises:
        UnsupportedGrammarError: a part of it cannot be enforced; names the part.
    """
    match spec:
        case JsonSchemaSpec():
            return LLMatcher.grammar_from_json_schema(
                prepare_schema(spec.schema, rewrites=rewrites), overrides=_SCHEMA_OPTIONS
            )
        case RegexSpec():
            return LLMatcher.grammar_from_regex(portable_pattern(spec.pattern))
        case ChoiceSpec():
            return LLMatcher.grammar_from_regex("|".join(_escaped(o) for o in spec.options))
        case GrammarTextSpec():
            return LLMatcher.grammar_from_lark(_lark_of(spec.text))
        case UnionSpec():
            return LLMatcher.grammar_from_lark(
                _union(spec, _Words(special_tokens, rewrites=rewrites))
            )
        case TaggedTextSpec():
            return LLMatcher.grammar_from_lark(
                _tagged_text(spec, _Words(special_tokens, rewrites=rewrites))
            )


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


class _Words:
    """Fixed texts and schemas as parts of a rule.

    Args:
        special_tokens: Text and id of the tokens that stand for no text.
        rewrites: As `library_grammar`.
    """

    def __init__(self, special_tokens: Mapping[str, int], *, rewrites: bool) -> None:
        self.special_tokens = special_tokens
        self._rewrites = rewrites

    def after(self, branch: Branch, begin: str) -> str:
        """Return a branch, with this in place of its beginning."""
        return f"{self.text(begin)} {self._json(branch.schema)} {self.text(branch.end)}"

    def text(self, text: str) -> str:
        """Return a fixed text, in which special tokens are what they stand for."""
        if not text:
            return ""
        names = sorted((name for name in self.special_tokens if name in text), key=len)
        if not names:
            return json.dumps(text)
        parts = re.split("(" + "|".join(map(re.escape, reversed(names))) + ")", text)
        return " ".join(
            f"<[{self.special_tokens[part]}]>" if part in self.special_tokens else json.dumps(part)
            for part in parts
            if part
        )

    def _json(self, schema: str) -> str:
        options = json.dumps(_SCHEMA_OPTIONS)
        body = prepare_schema(schema, rewrites=self._rewrites).removeprefix("{")
        return f'%json {{"x-guidance":{options}{"," if body != "}" else ""}{body}'


def _union(spec: UnionSpec, words: _Words) -> str:
    """``opener branch (separator branch)* closer``"""
    more = ""
    if spec.separator is not None and spec.max_branches != 1:
        bound = "*" if spec.max_branches is None else f"{{0,{spec.max_branches - 1}}}"
        more = f"({words.text(spec.separator)} branch){bound}"
    rules = [words.after(branch, branch.begin) for branch in spec.branches]
    lines = [f"start: {words.text(spec.opener)} branch {more} {words.text(spec.closer)}"]
    lines.append(f"branch: {' | '.join(f'branch_{index}' for index in range(len(rules)))}")
    lines += [f"branch_{index}: {rule}" for index, rule in enumerate(rules)]
    return "\n".join(lines)


def _tagged_text(spec: TaggedTextSpec, words: _Words) -> str:
    """Free text that ends at a trigger, which a branch then goes on from, any number of times."""
    lines = ["start: (tagged)* TEXT", r"TEXT: /(.|\n)*/"]
    names = []
    for number, trigger in enumerate(spec.triggers):
        bodies = [
            words.after(branch, branch.begin.removeprefix(trigger))
            for branch in spec.branches
            if branch.begin.startswith(trigger)
        ]
        if bodies:
            names.append(f"tagged_{number}")
            lines.append(_trigger_rule(number, trigger, words.special_tokens))
            lines.append(f"body_{number}: {' | '.join(f'({body})' for body in bodies)}")
    lines.append(f"tagged: {' | '.join(names)}")
    return "\n".join(lines)


def _trigger_rule(number: int, trigger: str, special_tokens: Mapping[str, int]) -> str:
    if trigger in special_tokens:
        return f"tagged_{number}: TEXT <[{special_tokens[trigger]}]> body_{number}"
    head = f"head_{number}[lazy]: /(.|\\n)*/ {json.dumps(trigger)}"
    return f"{head}\ntagged_{number}: head_{number} body_{number}"
