"""The rules of the house that a machine can hold, read from the source without running it."""

from __future__ import annotations

import ast
import graphlib
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = Path(__file__).parents[2]
ROOT = REPO / "radixserve"

LAYERS: dict[str, frozenset[str]] = {
    "types": frozenset(),
    "errors": frozenset(),
    "config": frozenset({"errors", "types"}),
    "config_file": frozenset({"config", "errors"}),
    "compat": frozenset({"errors", "frontend"}),
    "core": frozenset({"config", "errors", "types"}),
    "text": frozenset({"errors", "types"}),
    "grammar": frozenset({"errors", "types"}),
    "kernels": frozenset({"errors", "types"}),
    "device": frozenset(),
    "attention": frozenset({"config", "device", "errors", "kernels", "types"}),
    "models": frozenset({"attention", "config", "errors", "kernels", "types"}),
    "runtime": frozenset(
        {"attention", "config", "core", "device", "errors", "grammar", "kernels", "models", "types"}
    ),
    "engine": frozenset(
        {
            "attention",
            "config",
            "core",
            "errors",
            "grammar",
            "kernels",
            "models",
            "runtime",
            "text",
            "types",
        }
    ),
    "server": frozenset({"", "batch", "config", "engine", "errors", "grammar", "text", "types"}),
    "batch": frozenset({"config", "engine", "errors", "grammar", "text", "types"}),
    "bench": frozenset({"attention", "engine", "errors", "kernels", "runtime", "types"}),
    "replay": frozenset({"config", "core", "errors", "types"}),
    "frontend": frozenset({"config", "engine", "errors", "grammar", "text", "types"}),
}
"""Part of the package -> the parts it may import, besides itself. `cli` may import everything; ""
is the package's own file, which has the version."""

COMPOSITION_ROOTS = {"cli", "__main__", "__init__"}
"""They wire the parts together and are imported by none of them."""

CORE_THIRD_PARTY = {"sortedcontainers"}
CORE_FORBIDDEN_STDLIB = {"asyncio", "logging", "random", "secrets", "threading", "time"}

RUNTIME_MAY_SEE_OF_CORE = {"radixserve.core.plan"}

HEAVY = {"torch", "transformers"}
HEAVY_INSIDE_FUNCTIONS = {
    "cli/": "so that --help is quick",
    "text/tokenizer.py": "only a folder without a tokenizer.json needs transformers",
}
"""Where a function may import torch or transformers, and why it should."""

FORBIDDEN_FILE_NAMES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}

FULL_FILE_LINES = 350
LONGEST_FILE_LINES = 500
FULL_FILES: dict[str, str] = {
    "core/radix_tree.py": "one structure; its drawing and its contracts are a quarter of the file",
}
"""File -> why it may have between 350 and 500 lines."""

LONGEST_FUNCTION_LINES = 60
LONG_FUNCTIONS: dict[str, str] = {}
"""`path::function` -> why it may be longer than 60 lines."""

DOCUMENTED = ("core", "kernels", "device", "attention", "runtime", "engine")
"""Where every public class, function and method has a docstring."""


@dataclass(frozen=True)
class Import:
    """One imported module, as seen in one file."""

    target: str
    line: int
    in_function: bool
    for_types_only: bool


@dataclass(frozen=True)
class Module:
    """One source file of the package."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def key(self) -> str:
        """Its path below the package, as `core/plan.py`."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def name(self) -> str:
        """Its dotted name, as `radixserve.core.plan`."""
        parts = ["radixserve", *self.path.relative_to(ROOT).with_suffix("").parts]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def part(self) -> str:
        """The part of the house it belongs to: a sub-package, or a file at the top."""
        return self.path.relative_to(ROOT).with_suffix("").parts[0]


@cache
def modules() -> tuple[Module, ...]:
    """All source files of the package."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(Module(path, text, ast.parse(text)))
    return tuple(found)


def imports_of(module: Module) -> Iterator[Import]:
    """Every import of a file, wherever it stands."""
    yield from _walk_imports(module, module.tree, in_function=False, for_types_only=False)


def _walk_imports(
    module: Module, node: ast.AST, *, in_function: bool, for_types_only: bool
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        for target in _targets(module, child):
            yield Import(target, getattr(child, "lineno", 0), in_function, for_types_only)
        yield from _walk_imports(
            module,
            child,
            in_function=in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef),
            for_types_only=for_types_only
            or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)),
        )


def _targets(module: Module, node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    assert node.level == 0, f"{module.key}:{node.lineno}: relative imports hide the layer"
    assert node.module is not None
    names = {each.name for each in modules()} if node.module.startswith("radixserve") else set()
    return [
        f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in names else node.module
        for alias in node.names
    ]


def functions_of(tree: ast.AST) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of a tree with its qualified name, nested ones included."""
    for child in ast.iter_child_nodes(tree):
        name = getattr(child, "name", "")
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, child
        for inner, function in functions_of(child):
            yield (f"{name}.{inner}" if name else inner), function


def test_every_part_is_in_the_layer_table() -> None:
    unknown = {module.part for module in modules()} - set(LAYERS) - COMPOSITION_ROOTS
    assert not unknown, f"say in LAYERS what these may import: {sorted(unknown)}"


def test_the_layer_table_has_no_cycle() -> None:
    tuple(graphlib.TopologicalSorter(LAYERS).static_order())


def test_arrows_between_layers_point_only_downwards() -> None:
    wrong = []
    for module in modules():
        if module.part in COMPOSITION_ROOTS:
            continue
        for found in imports_of(module):
            root, _, rest = found.target.partition(".")
            part = rest.partition(".")[0]
            allowed = part == module.part or part in LAYERS[module.part]
            if root == "radixserve" and not allowed:
                wrong.append(f"{module.key}:{found.line} imports {found.target}")
    assert not wrong, "\n".join(wrong)


def test_no_two_files_import_each_other() -> None:
    graph: dict[str, set[str]] = {}
    for module in modules():
        targets = {found.target for found in imports_of(module) if not found.for_types_only}
        graph[module.name] = {name for name in targets if name.startswith("radixserve")}
    graph["radixserve"] = set()  # every file imports its package; the exports have their own test
    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_core_imports_only_the_standard_library_and_sortedcontainers() -> None:
    wrong = []
    for module in modules():
        if module.part != "core":
            continue
        for found in imports_of(module):
            top = found.target.partition(".")[0]
            third_party = top not in sys.stdlib_module_names | CORE_THIRD_PARTY | {"radixserve"}
            settings = found.target == "radixserve.config" and not found.for_types_only
            if third_party or top in CORE_FORBIDDEN_STDLIB or settings:
                wrong.append(f"{module.key}:{found.line} imports {found.target}")
    assert not wrong, "\n".join(wrong)


def test_the_runtime_sees_only_the_plan_of_core() -> None:
    wrong = [
        f"{module.key}:{found.line} imports {found.target}"
        for module in modules()
        if module.part == "runtime"
        for found in imports_of(module)
        if found.target.startswith("radixserve.core")
        and found.target not in RUNTIME_MAY_SEE_OF_CORE
    ]
    assert not wrong, "\n".join(wrong)


def test_heavy_imports_inside_functions_stay_where_they_are_allowed() -> None:
    wrong = [
        f"{module.key}:{found.line} imports {found.target} inside a function"
        for module in modules()
        if not module.key.startswith(tuple(HEAVY_INSIDE_FUNCTIONS))
        for found in imports_of(module)
        if found.in_function and found.target.partition(".")[0] in HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def test_the_command_line_loads_nothing_heavy_at_the_top_of_a_file() -> None:
    light = {"", "cli", "types", "errors", "config", "config_file"}
    wrong = []
    for module in modules():
        if module.part != "cli":
            continue
        for found in imports_of(module):
            if found.in_function or found.for_types_only:
                continue
            top, _, rest = found.target.partition(".")
            if top in HEAVY or (top == "radixserve" and rest.partition(".")[0] not in light):
                wrong.append(f"{module.key}:{found.line} imports {found.target}")
    assert not wrong, "\n".join(wrong)


def test_files_are_named_after_what_they_hold() -> None:
    places = (ROOT, REPO / "tests", REPO / "benchmarks", REPO / "scripts")
    wrong = [
        path.relative_to(REPO).as_posix()
        for place in places
        for path in place.rglob("*")
        if path.stem in FORBIDDEN_FILE_NAMES
    ]
    assert not wrong, f"name the noun instead: {wrong}"


def test_no_file_is_overfull() -> None:
    lengths = {module.key: len(module.text.splitlines()) for module in modules()}
    too_long = [
        f"{key}: {length} lines"
        for key, length in lengths.items()
        if length > (LONGEST_FILE_LINES if key in FULL_FILES else FULL_FILE_LINES)
    ]
    assert not too_long, "\n".join(too_long)
    assert set(FULL_FILES) <= {key for key, length in lengths.items() if length > FULL_FILE_LINES}


def test_no_native_source_is_overfull() -> None:
    sources = [*ROOT.glob("kernels/csrc/*.cpp"), *ROOT.glob("kernels/csrc/*.h")]
    assert sources, "the native sources have moved: follow them"
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in sources}
    assert {name: n for name, n in lengths.items() if n > FULL_FILE_LINES} == {}


def test_no_function_is_overlong() -> None:
    too_long = {
        f"{module.key}::{name}": function_lines(function)
        for module in modules()
        for name, function in functions_of(module.tree)
        if function_lines(function) > LONGEST_FUNCTION_LINES
    }
    assert set(too_long) == set(LONG_FUNCTIONS), too_long


def function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from `def` to its end, without its docstring."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        assert docstring.end_lineno is not None
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


@pytest.mark.parametrize("part", DOCUMENTED)
def test_public_names_have_docstrings(part: str) -> None:
    bare = [
        f"{module.key}:{node.lineno} {node.name}"
        for module in modules()
        if module.part == part
        for node in public_definitions(module.tree)
        if ast.get_docstring(node) is None
    ]
    assert not bare, "\n".join(bare)


def public_definitions(
    tree: ast.Module | ast.ClassDef,
) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Public classes and functions of a file, and the public methods of its public classes."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_"):
            continue
        if not is_declaration(node):
            yield node
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node)


def is_declaration(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether this is an attribute that a Protocol asks for: a property without a body."""
    return (
        isinstance(node, ast.FunctionDef)
        and [ast.unparse(each) for each in node.decorator_list] == ["property"]
        and [ast.unparse(each) for each in node.body] == ["..."]
    )


def test_every_module_says_what_it_is() -> None:
    bare = [
        module.key
        for module in modules()
        if module.text.strip() and ast.get_docstring(module.tree) is None
    ]
    assert not bare, bare


def test_only_the_command_line_prints() -> None:
    wrong = [
        f"{module.key}:{node.lineno}"
        for module in modules()
        if module.part != "cli"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not wrong, wrong
