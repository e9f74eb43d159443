"""What the tests of a task are, as its reference says; a reference that is none is refused."""

from __future__ import annotations

import ast
import json
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    """What the program is given to read, and what it must print."""

    stdout: str
    stdin: str = ""


class Runs(Struct, frozen=True, forbid_unknown_fields=True):
    """Tests by standard input and output, each a run of the program."""

    tests: Annotated[tuple[Run, ...], Meta(min_length=1)]


class Checks(Struct, frozen=True, forbid_unknown_fields=True):
    """Statements that call the program's functions: `test_code` as a whole, then each assert.

    `entry` names what is the program's even where Python has one of that name.
    """

    test_code: str = ""
    asserts: tuple[str, ...] = ()
    entry: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[tuple[str, bool], ...]:
        """All of them, in turn, and whether each must come to an assert."""
        first = [(self.test_code, not self.asserts)] if self.test_code else []
        return (*first, *((text, True) for text in self.asserts))


Reference = Runs | Checks


def read_reference(reference: object) -> Reference:
    """Of a table, or of a text that is one in JSON. Raises ValueError for anything else."""
    if isinstance(reference, str):
        reference = json.loads(reference)
    if not isinstance(reference, dict):
        raise ValueError("the reference is no table of `tests`, `asserts` or `test_code`")
    try:
        if "tests" in reference:
            return _telling(msgspec.convert(reference, Runs))
        return _asserting(msgspec.convert(_with_entries(reference), Checks))
    except msgspec.ValidationError as exc:
        raise ValueError(f"the reference is not as it must be: {exc}") from exc


def _with_entries(reference: dict[str, Any]) -> dict[str, Any]:
    entry = reference.get("entry")
    return {**reference, "entry": [entry]} if isinstance(entry, str) else reference


def _telling(runs: Runs) -> Runs:
    if not any(run.stdout.strip() for run in runs.tests):
        raise ValueError("the reference expects no output of any test: an empty program passes it")
    return runs


def _asserting(checks: Checks) -> Checks:
    """Raises ValueError for what is no Python, and for an assert that asserts nothing."""
    for source, must_assert in checks.sources:
        try:
            nodes = [*ast.walk(ast.parse(source))]
        except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
            raise ValueError(f"the reference has a test that is no Python: {exc}") from exc
        if must_assert and not any(isinstance(node, ast.Assert) for node in nodes):
            raise ValueError(f"the reference has a test without an assert: {source!r:.100}")
    if not checks.sources:
        raise ValueError("the reference has no assert, and so would any program pass it")
    return checks
