"""Makes docs/configuration.md from pipeline/run.py, and docs/metrics.md from what services declare.

With --check, says whether they are up to date.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client import Counter, Gauge

from pipeline.metrics import Metrics
from services.inference.metrics import Numbers as InferenceMetrics
from services.prompting.metrics import Numbers as PromptingMetrics
from services.scoring.metrics import Numbers as ScoringMetrics
from services.training.metrics import Numbers as TrainingMetrics

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "pipeline" / "run.py"

CONFIGURATION = """# Configuration

Every key of RUN.toml. This page is made from `pipeline/run.py` by `make docs`.

One TOML file describes a run. `--set section.key=value` overrides a key, on every command, as often
as you like; `--dry-run` prints the result and stops. A plug-in is named `"ppo"`, or with options
`{ use = "ppo", clip_high = 0.3 }`, or from your own code `{ use = "my_package.module:thing" }`.
"""

METRICS = """# Metrics

What each process serves at `/metrics` of its `--http` address. This page is made by `make docs`
from `services/*/metrics.py`. The same numbers travel with each beat, without `sluice_SERVICE_` in
front and `_total` behind: the panel and the report add those up.
"""

SERVICES = {
    "prompting": PromptingMetrics,
    "inference": InferenceMetrics,
    "scoring": ScoringMetrics,
    "training": TrainingMetrics,
}


def main() -> int:
    """Write the pages, or compare them; the exit code."""
    pages = {
        DOCS / "configuration.md": CONFIGURATION + "".join(sections(ast.parse(SOURCE.read_text()))),
        DOCS / "metrics.md": METRICS + "".join(metric_tables()),
    }
    if "--check" not in sys.argv[1:]:
        for path, page in pages.items():
            path.write_text(page)
        return 0
    old = [path for path, page in pages.items() if not path.exists() or path.read_text() != page]
    for path in old:
        print(f"{path.relative_to(ROOT)} is out of date: run `make docs`", file=sys.stderr)
    return 1 if old else 0


class Declared(NamedTuple):
    """A metric as Prometheus sees it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


class Recorder(Metrics):
    """Notes what a service declares."""

    def __init__(self, service: str) -> None:
        super().__init__(service)
        self.declared: list[Declared] = []

    def counter(self, noun: str, text: str, *labels: str) -> Counter:
        self.declared.append(Declared(f"{self.prefix}{noun}_total", "counter", labels, text))
        return super().counter(noun, text, *labels)

    def gauge(self, noun: str, text: str, *labels: str) -> Gauge:
        self.declared.append(Declared(f"{self.prefix}{noun}", "gauge", labels, text))
        return super().gauge(noun, text, *labels)


def declared(service: str) -> list[Declared]:
    """The metrics of one service, in the order of their declaration."""
    recorder = Recorder(service)
    SERVICES[service](recorder)
    return recorder.declared


def metric_tables() -> Iterator[str]:
    """One table for each service."""
    for service in SERVICES:
        yield f"\n## {service.capitalize()}\n\n"
        yield "| name | type | labels | what |\n|---|---|---|---|\n"
        for name, kind, labels, text in declared(service):
            shown = ", ".join(map(code, labels)) or "—"
            yield f"| `{name}` | {kind} | {shown} | {text} |\n"


def sections(tree: ast.Module) -> Iterator[str]:
    """One table for each Struct, the run's own keys first."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    structs = [node for node in classes if node.name not in ("Section", "MaxAge")]
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
        what = " ".join(str(doc.value.value).split()).replace("|", "\\|")
        yield name, kind(field.annotation), default(field.value), what


ALIASES = {
    "Positive": "integer ≥ 1",
    "Count": "integer ≥ 0",
    "Seconds": "number > 0",
    "Spec": "plug-in",
    "Swap": "`keep`, `recompute`, `drain` or `{ max_age = N }`",
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
