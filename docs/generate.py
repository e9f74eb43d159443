"""Makes docs/configuration.md from pipeline/run.py, and docs/metrics.md from what services declare.

In docs/scorers.md it makes the tables of options. With --check, says whether they are up to date.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import plugin_options

from pipeline.metrics import MOST_MET, Declared, Metrics
from services.inference.metrics import Numbers as InferenceMetrics
from services.prompting.metrics import Numbers as PromptingMetrics
from services.scoring.metrics import Numbers as ScoringMetrics
from services.training.metrics import Numbers as TrainingMetrics
from services.training.run_metrics import RunNumbers as RunMetrics

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "pipeline" / "run.py"
SCORERS = DOCS / "scorers.md"

CONFIGURATION = """# Configuration

Every key of RUN.toml. This page is made from `pipeline/run.py` by `make docs`.

One TOML file describes a run. `--set section.key=value` overrides a key, on every command, as often
as you like; `--dry-run` prints the result and stops. A plug-in is named `"ppo"`, or with options
`{ use = "ppo", clip_high = 0.3 }`, or from your own code `{ use = "my_package.module:thing" }`.
"""

METRICS = """# Metrics

What each process serves at `/metrics` of its `--http` address, labelled with its `run` and
`instance`. This page is made by `make docs` from `services/*/metrics.py`. Counters and gauges of a
process travel with each of its beats as well, without `sluice_SERVICE_` in front and `_total`
behind: the panel and the report add those up.

What belongs to the run is served by its trainer alone (`sluice_run_…`), which looks at the run with
each beat. Each metric stands in a dashboard, in a rule, or in the [runbook](runbook.md): a test
compares. A label has no other values than those declared.
"""

SHADOW = "the name of a shadow"

SUBJECTS: dict[str, Callable[[Metrics], object]] = {
    "prompting": PromptingMetrics,
    "inference": InferenceMetrics,
    "scoring": ScoringMetrics,
    "training": partial(TrainingMetrics, shadows=(SHADOW,)),
    "run": partial(RunMetrics, target_steps=0),
}
SHORT = 5


def main() -> int:
    """Write the pages, or compare them; the exit code."""
    pages = {
        DOCS / "configuration.md": CONFIGURATION
        + "".join([*sections(ast.parse(SOURCE.read_text())), *plugin_options.table()]),
        DOCS / "metrics.md": METRICS + "".join(metric_tables()),
        SCORERS: plugin_options.filled(SCORERS.read_text()),
    }
    if "--check" not in sys.argv[1:]:
        for path, page in pages.items():
            path.write_text(page)
        return 0
    old = [path for path, page in pages.items() if not path.exists() or path.read_text() != page]
    for path in old:
        print(f"{path.relative_to(ROOT)} is out of date: run `make docs`", file=sys.stderr)
    return 1 if old else 0


def declared(subject: str) -> list[Declared]:
    """The metrics of one service, or of the run, in the order of their declaration."""
    metrics = Metrics(subject)
    SUBJECTS[subject](metrics)
    return metrics.declared


def metric_tables() -> Iterator[str]:
    """One table for each service, and one for the run."""
    for subject in SUBJECTS:
        yield f"\n## {subject.capitalize()}\n\n"
        yield "| name | type | labels | what |\n|---|---|---|---|\n"
        for name, kind, labels, text in declared(subject):
            shown = "; ".join(f"{code(key)}: {values_of(labels[key])}" for key in labels) or "—"
            yield f"| `{name}` | {kind} | {shown} | {text.replace('|', chr(92) + '|')} |\n"


def values_of(values: Sequence[str]) -> str:
    """All that a label can be, or how many where that is a long list, or not known beforehand."""
    if not values:
        return f"the first {MOST_MET} that come, or `other`"
    return ", ".join(values) if len(values) <= SHORT else f"one of {len(values)}, or `other`"


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
    "Service": "service",
    "Spec": "plug-in",
    "Swap": "`keep`, `recompute`, `drain` or `{ max_age = N }`",
    "bool": "`true` or `false`",
    "int": "integer",
    "float": "number",
    "str": "text",
}
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "pattern": "like", "min_length": "at least"}


def kind(annotation: ast.expr) -> str:
    """A type as a reader of TOML would say it."""
    if isinstance(annotation, ast.BinOp):
        left, right = kind(annotation.left), annotation.right
        if isinstance(right, ast.Constant):  # "| None": where there is nothing by default
            return left
        return f"{left} or {kind(right)}"
    if not isinstance(annotation, ast.Subscript):
        return ALIASES[ast.unparse(annotation)]
    inner = annotation.slice
    match ast.unparse(annotation.value):
        case "Literal":
            return " or ".join(code(ast.unparse(option).strip("'")) for option in options(inner))
        case "list":
            return f"list of {kind(inner)}s"
        case "dict":
            key, value = options(inner)
            return f"table from {kind(key)} to {kind(value)}"
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
