"""Every number that a service declares is counted somewhere, documented, and named by its unit."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from generate import SERVICES, declared
from tree import ROOT, functions, modules

UNITS = {
    "seconds", "tokens", "members", "sequences", "groups", "steps", "flips", "errors", "refusals",
    "workers",
}  # fmt: skip
OWNERS = {"metrics", "numbers", "_numbers"}
WITHOUT_UNIT = {"reward", "learning_rate"}

services = pytest.mark.parametrize("service", SERVICES)


@services
def test_every_metric_is_counted_or_set_somewhere_in_its_service(service: str) -> None:
    attributes, named = set(), 0
    for target, call in _declarations(service):
        if isinstance(target, ast.Attribute):
            attributes.add(target.attr)
        else:
            assert f"{ast.unparse(target)}.set_function(" in _source(service), ast.unparse(call)
            named += 1
    clock = sum(
        metric.name.endswith(("_loop_seconds_total", "_wall_seconds_total"))
        for metric in declared(service)
    )
    assert len(attributes) + named == len(declared(service)) - clock
    assert not attributes - set(_uses(service))


def _declarations(service: str) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in ast.walk(modules()[f"services.{service}.metrics"]):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) in ("metrics.counter", "metrics.gauge")
        ):
            yield node.targets[0], node.value


def _source(service: str) -> str:
    return ast.unparse(modules()[f"services.{service}.metrics"])


def _uses(service: str) -> Iterator[str]:
    """Every attribute of the numbers that is read, but for where they are made."""
    for module, tree in modules().items():
        if module.startswith(f"services.{service}."):
            inside = module.endswith(".metrics")
            for node, function in functions(tree):
                if isinstance(node, ast.Attribute) and not (inside and function == "__init__"):
                    owner = ast.unparse(node.value).rpartition(".")[2]
                    if owner in OWNERS or (inside and owner == "self"):
                        yield node.attr


@services
def test_every_metric_is_in_the_documentation(service: str) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert declared(service)
    for metric in declared(service):
        assert f"| `{metric.name}` | {metric.kind} |" in page


@services
def test_a_name_ends_with_its_unit(service: str) -> None:
    for metric in declared(service):
        noun = metric.name.removeprefix(f"sluice_{service}_").removesuffix("_total")
        assert noun in WITHOUT_UNIT or noun.rpartition("_")[2] in UNITS, metric.name
        assert metric.name.endswith("_total") == (metric.kind == "counter")
