"""Breaks each invariant on purpose, and demands that a test sees it.

    python -m tests.mutants [NUMBER ...]

`mutants.toml` has the invariants of docs/architecture.md and, for each, changes to the code that
break it, with the tests that must fail then. They are made one at a time, in a copy of the working
tree; with numbers, those of these invariants alone. The last line is JSON; exit 1 where a mutant
survived.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import msgspec
from msgspec import Struct

ROOT = Path(__file__).resolve().parents[1]
BY_ASSERTION = ("AssertionError", "assert ", "Failed: DID NOT RAISE")
PATIENCE_SECONDS = 900


class Mutant(Struct, frozen=True, forbid_unknown_fields=True):
    """`old`, which stands once in `file`, becomes `new`; each of `tests`, node ids, must fail then.

    `broken` says what that breaks of the invariant.
    """

    invariant: int
    broken: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """The invariants by number, in one sentence each, and what breaks them."""

    invariants: dict[str, str]
    mutants: tuple[Mutant, ...]


class Result(NamedTuple):
    """Pytest's exit code, tests that failed by an assertion, and all else that went wrong."""

    code: int
    failed: frozenset[str]
    troubles: tuple[str, ...]


def load() -> Table:
    """The table as it stands."""
    return msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=Table)


def main(numbers: Sequence[str]) -> int:
    """Exit code: 0 where each mutant was seen."""
    table, started = load(), time.monotonic()
    if unknown := [number for number in numbers if number not in table.invariants]:
        sys.exit(
            f"{unknown[0]}: no invariant has this number; they are {', '.join(table.invariants)}"
        )
    chosen = [m for m in table.mutants if not numbers or str(m.invariant) in numbers]
    mutants = sorted(chosen, key=lambda mutant: mutant.invariant)
    with tempfile.TemporaryDirectory(prefix="sluice-mutants-") as folder:
        tree = Path(folder).resolve()
        _copy(tree)
        _check_path(tree)
        _check_unbroken(tree, sorted({test for m in mutants for test in m.tests}))
        survived = [m.broken for m in _told(mutants, table.invariants) if not _is_seen(tree, m)]
    seconds = round(time.monotonic() - started)
    summary = {"mutants": len(mutants), "survived": survived, "seconds": seconds}
    print(json.dumps(summary), flush=True)
    return 1 if survived else 0


def _copy(tree: Path) -> None:
    """All files of the working tree that git knows, or would if it were asked."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def _check_path(tree: Path) -> None:
    """What is installed, perhaps from the working tree itself, must not stand before the copy."""
    code = "import pipeline, services; print(pipeline.__file__); print(services.__file__)"
    for path in _python(tree, "-c", code).stdout.splitlines():
        print(path)
        assert Path(path).is_relative_to(tree), f"{path} would be tested, and not the copy"


def _check_unbroken(tree: Path, tests: Sequence[str]) -> None:
    started = time.monotonic()
    result = _run(tree, tests)
    if result.code:
        sys.exit("without any mutant: " + "; ".join([*sorted(result.failed), *result.troubles]))
    seconds = time.monotonic() - started
    print(f"{len(tests)} tests pass as the code is ({seconds:.0f} s)", flush=True)


def _told(mutants: Sequence[Mutant], invariants: dict[str, str]) -> Iterator[Mutant]:
    """Each, with its invariant's sentence in front of the first."""
    told = 0
    for mutant in mutants:
        if mutant.invariant != told:
            told = mutant.invariant
            print(f"\n{told}. {invariants[str(told)]}", flush=True)
        yield mutant


def _is_seen(tree: Path, mutant: Mutant) -> bool:
    """Whether each test that should fail does, and nothing fails but by an assertion."""
    started = time.monotonic()
    with _applied(tree, mutant):
        result = _run(tree, mutant.tests)
    missing = [test for test in mutant.tests if not _has_failed(test, result)]
    is_seen = result.code == 1 and not missing and not result.troubles
    tests = ", ".join(test.partition("::")[2].partition("[")[0] for test in mutant.tests)
    verdict = f"seen by {tests}" if is_seen else f"SURVIVED {tests}"
    print(f"   {mutant.broken}: {verdict} ({time.monotonic() - started:.0f} s)", flush=True)
    for trouble in () if is_seen else result.troubles:
        print(f"      {trouble}", flush=True)
    return is_seen


@contextmanager
def _applied(tree: Path, mutant: Mutant) -> Iterator[None]:
    path = tree / mutant.file
    whole = path.read_text(encoding="utf-8")
    assert whole.count(mutant.old) == 1, f"{mutant.file} has not just one {mutant.old!r}"
    path.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(whole, encoding="utf-8")


def _has_failed(test: str, result: Result) -> bool:
    """Of a test with parameters that are not named, one case is enough."""
    return any(failed == test or failed.startswith(f"{test}[") for failed in result.failed)


def _run(tree: Path, tests: Sequence[str]) -> Result:
    report = tree / "report.xml"
    report.unlink(missing_ok=True)
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = _python(tree, "-m", "pytest", *options, *tests)
    if done.returncode not in (0, 1):
        return Result(done.returncode, frozenset(), (done.stdout[-2000:] + done.stderr[-2000:],))
    failed, troubles = set(), []
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
        for fault in (
            *case.iterfind("failure"),
            *case.iterfind("error"),
            *case.iterfind("skipped"),
        ):
            message = fault.attrib.get("message", "").strip()
            if fault.tag == "failure" and message.startswith(BY_ASSERTION):
                failed.add(name)
            else:
                troubles.append(f"{name}: {fault.tag}: {message[:200]}")
    return Result(done.returncode, frozenset(failed), tuple(troubles))


def _python(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In the copy, and with it first on the path.

    No bytecode is kept: of a file that changes twice a second and not in length it would be taken
    for that of the other.
    """
    own = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=os.environ | own,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
