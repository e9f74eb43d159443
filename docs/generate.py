"""Makes docs/configuration.md from pipeline/run.py; with --check, says whether it is up to date."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "pipeline" / "run.py"
TARGET = ROOT / "docs" / "configuration.md"

HEAD = """# Configuration

Every key of RUN.toml. This page is made from `pipeline/run.py` by `make docs`.

One TOML file describes a run. `--set section.key=value` overrides a key, on every command, as often
as you like; `--dry-run` prints the result and stops. A plug-in is named `"ppo"`, or with options
`{ use = "ppo", clip_high = 0.3 }`, or from your own code `{ use = "my_package.module:thing" }`.
"""


def main() -> int:
    """Write the page, or compare it; the exit code."""
    page = HEAD + "".join(sections(ast.parse(SOURCE.read_text())))
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(page)
        return 0
    if TARGET.exists() and TARGET.read_text() == page:
        return 0
    print(f"{TARGET.relative_to(ROOT)} is out of date: run `make docs`", file=sys.stderr)
    return 1


def sections(tree: ast.Module) -> Iterator[str]:
    """One table for each Struct, the run's own keys first."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    structs = [node for node in classes if node.name != "Section"]
    for node in sorted(structs, key=lambda node: node.name != "Run"):
        title, _, text = (ast.get_docstring(node) or "").partition(": ")
        heading = f"`{title}`" if title.startswith("[") else "The run"
        rows = list(keys(node))
        yield f"\n## {heading}\n\n{(text or title).capitalize()}\n\n"
        yield "| key | type | default | what |\n|---|---|---|---|\n"
        yield "".join(
            f"| `{key}` | {kind} | {default} | {what} |\n" for key, kind, default, what in rows
        )


def keys(node: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and documentation of each field that is no section."""
    for field, doc in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(doc, ast.Expr):
            continue
        assert isinstance(doc.value, ast.Constant)
        name = ast.unparse(field.target)
        what = str(doc.value.value).replace("|", "\\|")
        yield name, kind(field.annotation), default(field.value), what


ALIASES = {
    "Positive": "integer ≥ 1",
    "Count": "integer ≥ 0",
    "Seconds": "number > 0",
    "Spec": "plug-in",
    "int": "integer",
    "float": "number",
    "str": "text",
}
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "pattern": "like", "min_length": "at least"}


def kind(annotation: ast.expr) -> str:
    """A type as a reader of TOML would say it."""
    if not isinstance(annotation, ast.Subscript):
        return ALIASES[ast.unparse(annotation)]
    inner = annotation.slice
    match ast.unparse(annotation.value):
        case "Literal":
            return " or ".join(code(ast.unparse(option).strip("'")) for option in options(inner))
        case "list":
            return f"list of {kind(inner)}s"
    base, meta = options(inner)
    assert isinstance(meta, ast.Call)
    rules = (f"{SIGNS[str(k.arg)]} {ast.unparse(k.value)}" for k in meta.keywords)
    return f"{kind(base)} {', '.join(rules)}".replace("|", "\\|")


def options(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def default(value: ast.expr | None) -> str:
    """The default as the TOML would have it."""
    if value is None:
        return "required"
    factory = value.keywords[0].value if isinstance(value, ast.Call) else value
    text = ast.unparse(factory.body if isinstance(factory, ast.Lambda) else factory)
    return code(text.replace("'", '"'))


def code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


if __name__ == "__main__":
    sys.exit(main())
