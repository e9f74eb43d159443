"""The options of every plug-in, read from the signatures of the callables that the tables name.

They are read as `pipeline.options` reads them, which imports no plug-in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.options import FAMILIES, GIVEN, written
from pipeline.verdicts import AT

SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}

ROOT = Path(__file__).resolve().parent.parent
OURS = ("pipeline.", "services.")

MARKED = re.compile(r"<!-- options: (\w+) -->\n(.*?)<!-- /options -->", re.DOTALL)
"""Where a page of our own has the table of one scorer."""

Known = Mapping[str, ast.expr]
"""What a module's own names stand for."""

HEAD = """
## Plug-ins

What a key that takes a plug-in can name, and the options that stand beside `use`: those without a
default are required. A scorer has `weight`, `gate` and
[others](scorers.md#weights-gates-shadows) besides. `columns` is a table that says which column is
the `prompt`, the `reference` and the `task`; `a.b` is a field in column a.

| key | name | option | type | default |
|---|---|---|---|---|
"""


def table() -> Iterator[str]:
    """The section, row by row."""
    yield HEAD
    for key, names in FAMILIES.items():
        for name, where in names.items():
            rows = [row for row in _options(where) if row[0] not in GIVEN.get(key, ())]
            for option, kind, default in rows:
                yield f"| `{key}` | `{name}` | `{option}` | {kind} | {default} |\n"
            if not rows:
                yield f"| `{key}` | `{name}` | — | | |\n"


def filled(page: str) -> str:
    """The page with the options of each scorer that it marks a place for."""
    return MARKED.sub(
        lambda place: f"<!-- options: {place[1]} -->\n{_own(place[1])}<!-- /options -->", page
    )


def _own(name: str) -> str:
    """A scorer's table; none for a name that is not known (yet), or without options."""
    where = FAMILIES[AT].get(name)
    rows = [row for row in _options(where) if row[0] not in GIVEN[AT]] if where else []
    head = "\n| option | type | default |\n|---|---|---|\n" if rows else ""
    end = "\n" if rows else ""
    return (
        head
        + "".join(f"| `{option}` | {kind} | {default} |\n" for option, kind, default in rows)
        + end
    )


def _options(where: str) -> Iterator[tuple[str, str, str]]:
    """Name, type and default of each."""
    module, _, thing = where.partition(":")
    found = written(module, thing)
    assert found, f"{where}: its options cannot be read"
    known, arguments = _known(found.module), found.arguments
    for option, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        assert option.annotation, f"{where}: {option.arg} has no type"
        yield option.arg, _kind(option.annotation, known), _default(default, known)


def _known(module: ast.Module) -> dict[str, ast.expr]:
    """What the module's names stand for, and those that it takes from another of ours."""
    out: dict[str, ast.expr] = {}
    for node in module.body:
        match node:
            case ast.Assign([ast.Name(name)], value):
                out[name] = value
            case ast.ImportFrom(str(source), names) if source.startswith(OURS):
                theirs = _known(_parsed(source))
                out |= {a.name: theirs[a.name] for a in names if a.name in theirs}
    return out


def _parsed(module: str) -> ast.Module:
    """A module, or a package, of ours."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _kind(annotation: ast.expr, known: Known) -> str:
    """The type as it is written, names of the module's own spelt out, a number's range behind."""
    match annotation:
        case ast.Name(name) if name in known:
            return _kind(known[name], known)
        case ast.Subscript(ast.Name("Annotated"), ast.Tuple([base, ast.Call() as meta])):
            rules = (f"{SIGNS[str(k.arg)]} {ast.unparse(k.value)}" for k in meta.keywords)
            return " ".join([_kind(base, known), ", ".join(rules)])
        case ast.BinOp(left, ast.BitOr(), ast.Constant(None)):
            return _kind(left, known)
        case ast.BinOp(left, ast.BitOr(), right):
            return f"{_kind(left, known)} or {_kind(right, known)}"
    return _code(ast.unparse(annotation))


def _default(value: ast.expr | None, known: Known) -> str:
    match value:
        case None:
            return "required"
        case ast.Constant(None):
            return "—"
        case ast.Name(name) if name in known:
            return _code(ast.unparse(known[name]))
    return _code(ast.unparse(value))


def _code(text: str) -> str:
    return "`" + text.replace("'", '"').replace("|", "\\|") + "`"
