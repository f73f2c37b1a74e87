"""JSON schemas made ready for the library: checked, and said so that it means the same to all.

The library refuses by name the keywords that it does not enforce. Refused here is what it would
enforce by half: where an output that it takes for valid is not valid to a validator.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeAlias

from radixserve.errors import UnsupportedGrammarError
from radixserve.grammar.patterns import differs_between_engines, portable_pattern
from radixserve.grammar.schema_rewrites import rewrite
from radixserve.grammar.schema_walk import Schema, SchemaWalk, check_cycles, check_depth

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH = 64
"""Nesting of arrays and objects in a schema; the deepest seen in practice is 22."""

_COUNTS = (
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
)
_STANDARD_FORMATS = frozenset(
    {
        *("date-time", "date", "time", "duration", "email", "idn-email", "hostname"),
        *("idn-hostname", "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference"),
        *("uuid", "uri-template", "json-pointer", "relative-json-pointer", "regex", "unknown"),
    }
)
"""What some draft gives a meaning to. Any other word is a remark that no validator checks."""

_CONTROL = re.compile(r"(?<!\\)(?:\\\\)*(\\u00[01][0-9a-f])")
"""An escape as `json.dumps` writes it for characters that have no short one."""

_MEANINGLESS_ALONE = {
    "then": "if",
    "else": "if",
    "minContains": "contains",
    "maxContains": "contains",
}
"""Keyword -> the one without which it asks for nothing."""

_Check: TypeAlias = "Callable[[Schema], None]"


def prepare_schema(text: str, *, rewrites: bool = False) -> str:
    """Return a schema for the library, as JSON text.

    Args:
        text: The caller's schema, as JSON text.
        rewrites: Say in other words what the library has none for.
    Raises:
        UnsupportedGrammarError: it is no schema, or a part of it cannot be enforced; names the
            part.
    Complexity: O(n) in the text.
    """
    root = _parsed(text)
    check_depth(root, MAX_DEPTH)
    if root is False:
        raise UnsupportedGrammarError("the schema is false: no value is valid under it")
    if root is True:
        root = {}
    if not isinstance(root, dict):
        raise UnsupportedGrammarError("a schema must be an object, true or false")
    walk = SchemaWalk(root)
    for node, pointer in walk.nodes():
        _prepare(node, pointer)
    check_cycles(root)
    if rewrites:
        rewrite(root)
    else:
        _keep_formats_out_of_proofs(root)
    return json.dumps(root, ensure_ascii=False, separators=(",", ":"))


def _keep_formats_out_of_proofs(root: Schema) -> None:
    """Let no `oneOf` rest on a `format`, which validators do not check.

    The library would call a date and a word apart, and a validator finds the word under both.
    """
    nodes = [node for node, _ in SchemaWalk(root).nodes()]
    if not any("oneOf" in node for node in nodes) or not any("format" in node for node in nodes):
        return
    if not rewrite(root, only={"oneOf"}) or any("oneOf" in node for node in nodes):
        for node in nodes:
            node.pop("format", None)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise UnsupportedGrammarError("the schema is nested too deeply") from None
    except ValueError as error:
        raise UnsupportedGrammarError(f"the schema is not JSON: {error}") from None


def _prepare(node: Schema, pointer: str) -> None:
    """Check one subschema by itself and translate what is said in another language."""
    try:
        for check in _CHECKS:
            check(node)
    except UnsupportedGrammarError as error:
        raise UnsupportedGrammarError(f"{error} (at {pointer})") from None


def _drop_options(node: Schema) -> None:
    # The library's own switches, among them one that ignores what is not supported.
    node.pop("x-guidance", None)


def _count_in_integers(node: Schema) -> None:
    for name in _COUNTS:
        value = node.get(name)
        if isinstance(value, float) and value.is_integer():
            node[name] = int(value)


def _translate_pattern(node: Schema) -> None:
    if isinstance(node.get("pattern"), str):
        node["pattern"] = portable_pattern(node["pattern"])


def _check_pattern_properties(node: Schema) -> None:
    """A key that one engine sees as matching and another does not has two meanings.

    Where no other key is allowed, the narrow reading is right for all of them.
    """
    patterns = node.get("patternProperties")
    if not isinstance(patterns, dict):
        return
    others_are_refused = node.get("additionalProperties") is False
    for pattern in patterns:
        if differs_between_engines(pattern) and not others_are_refused:
            raise UnsupportedGrammarError(
                f"patternProperties with {pattern!r} matches different keys in different engines; "
                "write its character classes out, or set additionalProperties to false"
            )
    translate = portable_pattern if others_are_refused else _python_pattern
    node["patternProperties"] = {translate(name): value for name, value in patterns.items()}


def _python_pattern(pattern: str) -> str:
    return portable_pattern(pattern, line_ends=r"\n")


def _check_multiple(node: Schema) -> None:
    """Validators divide in binary floating point, where 0.29 is no multiple of 0.01."""
    step = node.get("multipleOf")
    if isinstance(step, float) and not _is_exact(step):
        raise UnsupportedGrammarError(
            f"multipleOf {step} is not exact in binary: validators disagree about its multiples"
        )


def _is_exact(step: float) -> bool:
    """Whether dividing by `step` is exact: a small power of two as denominator."""
    return step != 0 and (step * 1024).is_integer()


def _check_min_properties(node: Schema) -> None:
    """A key may come twice, and counts once: only required ones are surely different."""
    least = node.get("minProperties")
    required = node.get("required")
    num_required = len(required) if isinstance(required, list) else 0
    if not isinstance(least, int) or least <= num_required + 1:
        return
    if node.get("additionalProperties") is not False or node.get("patternProperties"):
        raise UnsupportedGrammarError(
            f"minProperties {least} with keys that are not named: that they differ cannot be "
            "enforced"
        )


def _drop_remarks(node: Schema) -> None:
    """Leave out what asks for nothing."""
    name = node.get("format")
    if isinstance(name, str) and name not in _STANDARD_FORMATS:
        del node["format"]
    if node.get("uniqueItems") is False:
        del node["uniqueItems"]
    for name, owner in _MEANINGLESS_ALONE.items():
        if owner not in node:
            node.pop(name, None)


def _check_controls(node: Schema) -> None:
    """Control characters without an escape of one letter cannot be written."""
    for name in ("const", "enum", "properties", "required"):
        value = node.get(name)
        said = list(value) if isinstance(value, dict) and name == "properties" else value
        found = _CONTROL.search(json.dumps(said))
        if found is not None:
            raise UnsupportedGrammarError(
                f"{name} has the control character {found[1]}, which cannot be enforced"
            )


_CHECKS: tuple[_Check, ...] = (
    _drop_options,
    _drop_remarks,
    _count_in_integers,
    _translate_pattern,
    _check_pattern_properties,
    _check_multiple,
    _check_min_properties,
    _check_controls,
)
