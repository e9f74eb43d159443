"""The table of mutants fits the code, the tests, and the invariants of docs/architecture.md."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache

from tests.mutants import ROOT, load

TABLE = load()
ROW = re.compile(r"^\| (\d+) \| (.+?) \| .+ \| (.+) \|$", re.MULTILINE)


def text_of(file: str) -> str:
    """Empty where it is not there."""
    return (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).is_file() else ""


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse(text_of(file))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_what_a_mutant_changes_stands_just_once_in_its_file() -> None:
    counts = {f"{m.file}: {m.broken}": text_of(m.file).count(m.old) for m in TABLE.mutants}
    assert {what: count for what, count in counts.items() if count != 1} == {}
    assert not [mutant.broken for mutant in TABLE.mutants if mutant.old == mutant.new]


def test_every_test_that_must_fail_exists() -> None:
    nodes = [node.partition("[")[0].split("::") for m in TABLE.mutants for node in m.tests]
    assert [name for file, name in nodes if name not in functions(file)] == []
    assert all(mutant.tests for mutant in TABLE.mutants)


def test_each_of_the_ten_is_broken_in_at_least_two_ways() -> None:
    counts = Counter(mutant.invariant for mutant in TABLE.mutants)
    assert counts.keys() == set(range(1, 11)) and min(counts.values()) >= 2
    assert len({mutant.broken for mutant in TABLE.mutants}) == len(TABLE.mutants)


def test_the_architecture_says_the_same_ten_and_where_each_is_proven() -> None:
    rows = ROW.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert {number: sentence for number, sentence, _ in rows} == TABLE.invariants
    for number, _, proof in rows:
        named = {f"tests/{file}" for file in re.findall(r"`(\S+\.py)`", proof)}
        seeing = {
            test.partition("::")[0]
            for mutant in TABLE.mutants
            if mutant.invariant == int(number)
            for test in mutant.tests
        }
        assert seeing <= named, f"{number} does not name {sorted(seeing - named)}"
        assert all(map(text_of, named)), f"{number} names a file that is not there"
