"""The source of both packages as syntax trees: what is imported where, without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline", "services")


class Import(NamedTuple):
    """A module that is imported, in full, and the function that does it: empty at the top."""

    module: str
    function: str


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the two packages by its name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            path.read_text(encoding="utf-8")
        )
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


@cache
def imports(module: str) -> list[Import]:
    """What a module imports when it runs: nothing that only a type checker sees."""
    return [
        Import(name, function)
        for node, function in _statements(modules()[module])
        for name in _names(node)
    ]


def at_top(module: str) -> set[str]:
    """The modules that are imported with this one."""
    return {found.module for found in imports(module) if not found.function}


def closure(module: str) -> set[str]:
    """Everything that is imported with this one, by way of our own modules."""
    seen: set[str] = set()
    todo = [module]
    while todo:
        for name in at_top(todo.pop()) - seen:
            seen.add(name)
            if name in modules():
                todo.append(name)
    return seen


def functions(tree: ast.AST, name: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Every node with the name of the innermost function that it stands in."""
    for node in ast.iter_child_nodes(tree):
        yield node, name
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else name
        yield from functions(node, inner)


def _statements(tree: ast.AST, function: str = "") -> Iterator[tuple[ast.AST, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, function
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _statements(node, node.name if named else function)  # type: ignore[attr-defined]


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        assert not node.level, "imports are absolute"
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in modules() else str(node.module)
