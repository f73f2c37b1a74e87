"""The subschemas of a JSON schema: where they are, and which of them apply to the same value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from radixserve.errors import UnsupportedGrammarError

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema: TypeAlias = dict[str, Any]

IN_PLACE_ONE = ("not", "if", "then", "else")
IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
ONE = (
    *IN_PLACE_ONE,
    "additionalProperties",
    "additionalItems",
    "items",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
)
LISTS = (*IN_PLACE_LISTS, "prefixItems", "items")
MAPS = (*IN_PLACE_MAPS, "properties", "patternProperties", "$defs", "definitions")


def check_depth(value: Any, most: int) -> None:
    """Refuse a JSON value that is nested deeper than `most` arrays and objects.

    Raises:
        UnsupportedGrammarError: it is. Complexity: O(n), without recursion.
    """
    level = [value]
    for _ in range(most + 1):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise UnsupportedGrammarError(f"the schema is nested deeper than {most} levels")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def subschemas(node: Schema) -> Iterator[tuple[str, Any]]:
    """Yield what stands directly in a schema where a schema belongs, with its place."""
    for name in ONE:
        if name in node and not isinstance(node[name], list):
            yield name, node[name]
    for name in LISTS:
        if isinstance(node.get(name), list):
            yield from ((f"{name}/{index}", child) for index, child in enumerate(node[name]))
    for name in MAPS:
        if isinstance(node.get(name), dict):
            yield from (
                (f"{name}/{key}", child)
                for key, child in node[name].items()
                if not isinstance(child, list)
            )


class SchemaWalk:
    """All the subschemas of a root, those included that only a `$ref` makes a schema of."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def nodes(self) -> Iterator[tuple[Schema, str]]:
        """Yield each subschema once, with its JSON pointer. It may be changed in place.

        Raises:
            UnsupportedGrammarError: something else stands where a schema belongs.
        """
        seen: set[int] = set()
        queue: list[tuple[Any, str]] = [(self._root, "#")]
        while queue:
            node, pointer = queue.pop()
            if isinstance(node, bool) or id(node) in seen:
                continue
            if not isinstance(node, dict):
                raise UnsupportedGrammarError(
                    f"a schema must be an object, true or false (at {pointer})"
                )
            seen.add(id(node))
            yield node, pointer
            queue += [(child, f"{pointer}/{place}") for place, child in subschemas(node)]
            target = target_of(self._root, node)
            if target is not None:
                queue.append((target, str(node["$ref"])))


def target_of(root: Schema, node: Schema) -> Any:
    """Return what a schema's `$ref` points at within the root; None if it points elsewhere.

    Raises:
        UnsupportedGrammarError: it points at nothing.
    """
    ref = node.get("$ref")
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        return None
    value: Any = root
    for part in ref.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise UnsupportedGrammarError(f"$ref {ref!r} points at nothing")
    return value


def check_cycles(root: Schema) -> None:
    """Refuse references that go in a circle without a value in between.

    Raises:
        UnsupportedGrammarError: there is one. Complexity: O(n).
    """
    done: set[int] = set()
    for start, _ in SchemaWalk(root).nodes():
        _check_cycles_from(root, start, done)


def _check_cycles_from(root: Schema, start: Schema, done: set[int]) -> None:
    on_path: set[int] = set()
    stack: list[tuple[Schema, bool]] = [(start, False)]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            on_path.discard(id(node))
            done.add(id(node))
        elif id(node) in on_path:
            raise UnsupportedGrammarError(
                f"$ref {node.get('$ref', '')!r} goes in a circle: it never says what a value is"
            )
        elif id(node) not in done:
            on_path.add(id(node))
            stack.append((node, True))
            stack += [(child, False) for child in _in_place(root, node)]


def _in_place(root: Schema, node: Schema) -> list[Schema]:
    """Return the schemas that apply to the same value as `node`."""
    found = [node.get(name) for name in IN_PLACE_ONE]
    for name in IN_PLACE_LISTS:
        found += node[name] if isinstance(node.get(name), list) else []
    for name in IN_PLACE_MAPS:
        found += node[name].values() if isinstance(node.get(name), dict) else []
    found.append(target_of(root, node))
    return [child for child in found if isinstance(child, dict)]
