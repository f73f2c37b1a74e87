"""Keywords that the library does not know, said exactly in words that it does.

not S                        the opposite of S
if I then T else E           (I and T) or (not I and E)
oneOf [A, B]                 (A and not B) or (B and not A)
dependentRequired, ...       without the key, or with it and what it asks for
propertyNames                patternProperties, and no others
unevaluatedProperties        additionalProperties, where it is known which are evaluated
$dynamicRef                  $ref, where there is one anchor of that name
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from radixserve.grammar.schema_negation import Negation, NoOpposite, any_of, assertions
from radixserve.grammar.schema_walk import SchemaWalk, target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from radixserve.grammar.schema_walk import Schema

MAX_BRANCHES = 12
"""Of a `oneOf`: each is held against each other one."""


def rewrite(root: Schema, *, only: Container[str] | None = None) -> bool:
    """Rewrite what can be rewritten; the rest stays as it is.

    Args:
        only: The keywords to rewrite; None is all that are known here.
    Returns: whether anything has changed.
    Mutates: `root`.
    """
    has_changed = False
    original = copy.deepcopy(root)
    negation = Negation(original)
    nodes = list(SchemaWalk(root).nodes())
    if any("$id" in node for node, pointer in nodes if pointer != "#"):
        return False  # references in it are relative to something else
    for node, _ in nodes:
        for name, rule in _RULES.items():
            if name in node and (only is None or name in only):
                has_changed = _try(rule, node, original, negation) or has_changed
    return has_changed


def _try(
    rule: Callable[[Schema, Schema, Negation], None],
    node: Schema,
    root: Schema,
    negation: Negation,
) -> bool:
    """Apply one rule wholly or not at all."""
    changed = dict(node)
    try:
        rule(changed, root, negation)
    except NoOpposite:
        return False
    node.clear()
    node.update(changed)
    return True


def _add(node: Schema, schema: Any) -> None:
    """Let a schema hold as well."""
    if schema is not True:
        node["allOf"] = [*node.get("allOf", ()), schema]


def _not(node: Schema, root: Schema, negation: Negation) -> None:
    _add(node, negation.of(node.pop("not")))


def _if(node: Schema, root: Schema, negation: Negation) -> None:
    if "then" not in node and "else" not in node:
        del node["if"]
        return
    condition, then, other = node.pop("if"), node.pop("then", True), node.pop("else", True)
    parts = []
    if then is not False:
        parts.append({"allOf": [condition, then]})
    if other is not False:
        parts.append({"allOf": [negation.of(condition), other]})
    _add(node, any_of(parts))


def _one_of(node: Schema, root: Schema, negation: Negation) -> None:
    branches = node.pop("oneOf")
    if len(branches) > MAX_BRANCHES:
        raise NoOpposite("oneOf")
    alternatives = []
    for place, branch in enumerate(branches):
        others = [
            negation.of(other)
            for index, other in enumerate(branches)
            if index != place and not _are_apart(branch, other, root)
        ]
        alternatives.append({"allOf": [branch, *others]} if others else branch)
    _add(node, any_of(alternatives))


def _are_apart(one: Any, other: Any, root: Schema) -> bool:
    """Whether no value is valid under both, as their types or a common required key show."""
    one, other = _resolved(one, root), _resolved(other, root)
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return False
    types, other_types = _types(one), _types(other)
    if types and other_types and not types & other_types:
        return True
    if types != {"object"} or other_types != {"object"}:
        return _values_are_apart(one, other)
    common = set(one.get("required", ())) & set(other.get("required", ()))
    properties, other_properties = one.get("properties", {}), other.get("properties", {})
    return any(
        _values_are_apart(
            _resolved(properties.get(key), root), _resolved(other_properties.get(key), root)
        )
        for key in common
    )


def _values_are_apart(one: Any, other: Any) -> bool:
    values, other_values = _values(one), _values(other)
    return bool(values) and bool(other_values) and not any(v in other_values for v in values)


def _values(schema: Any) -> list[Any]:
    if not isinstance(schema, dict):
        return []
    return [schema["const"]] if "const" in schema else list(schema.get("enum") or ())


def _types(schema: Schema) -> set[str]:
    named = schema.get("type", ())
    types = {named} if isinstance(named, str) else set(named)
    return {"number" if kind == "integer" else kind for kind in types}


def _resolved(schema: Any, root: Schema) -> Any:
    for _ in range(8):
        if not isinstance(schema, dict) or assertions(schema) != ["$ref"]:
            break
        target = target_of(root, schema)
        if target is None:
            break
        schema = target
    return schema


def _dependent_required(node: Schema, root: Schema, negation: Negation) -> None:
    for key, needed in node.pop("dependentRequired").items():
        _add_dependency(node, key, {"required": [key, *needed]})


def _dependent_schemas(node: Schema, root: Schema, negation: Negation) -> None:
    for key, schema in node.pop("dependentSchemas").items():
        _add_dependency(node, key, {"allOf": [{"required": [key]}, schema]})


def _dependencies(node: Schema, root: Schema, negation: Negation) -> None:
    for key, needed in node.pop("dependencies").items():
        if isinstance(needed, list):
            _add_dependency(node, key, {"required": [key, *needed]})
        else:
            _add_dependency(node, key, {"allOf": [{"required": [key]}, needed]})


def _add_dependency(node: Schema, key: str, then: Schema) -> None:
    _add(node, {"anyOf": [{"properties": {key: False}}, then]})


def _property_names(node: Schema, root: Schema, negation: Negation) -> None:
    names = _resolved(node.pop("propertyNames"), root)
    if names is True or names == {}:
        return
    if not isinstance(names, dict):
        raise NoOpposite("propertyNames")
    rules = set(assertions(names)) - {"type"}
    if names.get("type", "string") != "string" or len(rules) != 1 or "patternProperties" in node:
        raise NoOpposite("propertyNames")
    if rules & {"enum", "const"}:
        _only_named(node, [key for key in _values(names) if isinstance(key, str)])
    elif rules == {"pattern"} and not node.get("properties"):
        node["patternProperties"] = {names["pattern"]: node.get("additionalProperties", True)}
        node["additionalProperties"] = False
    else:
        raise NoOpposite("propertyNames")


def _only_named(node: Schema, keys: list[str]) -> None:
    """Allow these keys and no others."""
    known, others = node.get("properties", {}), node.get("additionalProperties", True)
    node["properties"] = {key: known.get(key, others) for key in keys} | {
        key: False for key in known if key not in keys
    }
    node["additionalProperties"] = False


def _unevaluated_properties(node: Schema, root: Schema, negation: Negation) -> None:
    rest = node.pop("unevaluatedProperties")
    keys: dict[str, Any] = {}
    patterns: dict[str, Any] = {}
    for part in _always_valid_parts(node, root):
        if "additionalProperties" in part or "unevaluatedProperties" in part:
            return
        keys |= dict.fromkeys(part.get("properties", ()), True)
        patterns |= dict.fromkeys(part.get("patternProperties", ()), True)
    if rest is not True and rest != {}:
        _add(
            node,
            {"properties": keys, "patternProperties": patterns, "additionalProperties": rest},
        )


def _unevaluated_items(node: Schema, root: Schema, negation: Negation) -> None:
    rest = node.pop("unevaluatedItems")
    num_known = 0
    for part in _always_valid_parts(node, root):
        if "contains" in part:
            raise NoOpposite("contains")
        if "items" in part or "unevaluatedItems" in part:
            return
        num_known = max(num_known, len(part.get("prefixItems", ())))
    if rest is not True and rest != {}:
        _add(node, {"prefixItems": [True] * num_known, "items": rest})


def _always_valid_parts(node: Schema, root: Schema) -> list[Schema]:
    """Return the schemas that surely hold for the same value, the node itself first.

    Raises:
        NoOpposite: which ones hold depends on the value.
    """
    found: list[Schema] = []
    queue: list[Any] = [node]
    while queue:
        part = queue.pop(0)
        if not isinstance(part, dict):
            continue
        if part.keys() & {"anyOf", "oneOf", "if", "dependentSchemas", "$dynamicRef", "not"}:
            raise NoOpposite("unevaluated")
        if len(found) > MAX_BRANCHES:
            raise NoOpposite("unevaluated")
        found.append(part)
        queue += part.get("allOf", [])
        if "$ref" in part:
            target = target_of(root, part)
            if target is None:
                raise NoOpposite("$ref")
            queue.append(target)
    return found


def _dynamic_ref(node: Schema, root: Schema, negation: Negation) -> None:
    """With one anchor of a name, and no other document inside, there is nothing dynamic."""
    wanted = node.pop("$dynamicRef")
    nodes = list(SchemaWalk(root).nodes())
    found = [(one, at) for one, at in nodes if f"#{one.get('$dynamicAnchor')}" == wanted]
    if len(found) != 1 or "$ref" in node:
        raise NoOpposite("$dynamicRef")
    [(target, pointer)] = found
    node["$ref"] = pointer
    if target_of(root, node) is not target:
        raise NoOpposite("$dynamicRef")


def _dynamic_anchor(node: Schema, root: Schema, negation: Negation) -> None:
    del node["$dynamicAnchor"]  # with no reference left to it, a mere name


_RULES: dict[str, Callable[[Schema, Schema, Negation], None]] = {
    "$dynamicRef": _dynamic_ref,
    "$dynamicAnchor": _dynamic_anchor,
    "unevaluatedProperties": _unevaluated_properties,
    "unevaluatedItems": _unevaluated_items,
    "propertyNames": _property_names,
    "not": _not,
    "if": _if,
    "oneOf": _one_of,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _dependencies,
}
