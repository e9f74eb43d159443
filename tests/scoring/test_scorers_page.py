"""docs/scorers.md: its examples are runs, its tables are complete, and what they say is so."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from asked import told

from pipeline.families import SCORERS
from pipeline.options import AT, GIVEN, check_options, written
from pipeline.run import Run
from services.scoring.scorers.reasons import NoAnswer, Why
from services.scoring.scorers.text.figures import Figures

PAGE = (Path(__file__).parents[2] / "docs" / "scorers.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"(?m)^## ", PAGE)}
EXAMPLES = [tomllib.loads(text) for text in re.findall(r"(?ms)^```toml\n(.*?)^```", PAGE)]
RUNS = [tree for tree in EXAMPLES if "scoring" in tree]
MADE = re.compile(r"<!-- options: (\w+) -->(.*?)<!-- /options -->", re.DOTALL)


def cells(section: str) -> tuple[list[str], list[str]]:
    """What stands in code in the two columns of its tables that are not made."""
    rows = [
        line.split(" | ") for line in MADE.sub("", SECTIONS[section]).splitlines() if "|" in line
    ]
    left, right = ([row[side] for row in rows if len(row) == 2] for side in (0, 1))
    return _code(left), _code(right)


def _code(texts: list[str]) -> list[str]:
    return [found for text in texts for found in re.findall(r"`([^`]+)`", text)]


@pytest.mark.parametrize("tree", RUNS, ids=str)
def test_every_example_is_one_that_a_run_takes(tree: dict[str, Any]) -> None:
    base = {"name": "run", "steps": 1, "data": "jsonl", "model": {"path": "m"}}
    check_options(msgspec.convert({**base, **tree}, Run))


@pytest.mark.parametrize("name", SCORERS)
def test_every_scorer_has_a_section_and_every_option_is_told_in_words(name: str) -> None:
    assert [title for title in SECTIONS if f"`{name}`" in title]
    module, _, thing = SCORERS[name].partition(":")
    found = written(module, thing)
    assert found
    options = [one.arg for one in found.arguments.kwonlyargs if one.arg not in GIVEN[AT]]
    assert [made[0] for made in MADE.findall(PAGE)].count(name) == bool(options)
    words = MADE.sub("", PAGE)
    assert [one for one in options if not re.search(rf"`{one}\b|\b{one} *= ", words)] == []


def test_every_reason_is_told() -> None:
    told_ = _code(SECTIONS["Reasons"].splitlines())
    assert [why for why in Why if why not in told_] == []


def test_what_the_page_says_of_choice_is_so() -> None:
    right, wrong = cells("`choice`")
    reference = {"answer": "B", "choices": ["London", "Paris", "Rome", "Berlin"]}
    assert len(right) > 8 and len(wrong) > 8
    assert [text for text in right if told("choice", text, reference)[0] != 1.0] == []
    assert [text for text in wrong if told("choice", text, reference)[0] != 0.0] == []


def test_what_the_page_says_of_numeric_is_so() -> None:
    numbers, others = cells("`numeric`")
    assert len(numbers) > 15 and len(others) > 15
    assert [text for text in numbers if not is_number(text)] == []
    assert [text for text in others if is_number(text)] == []


def is_number(text: str) -> bool:
    try:
        Figures().read(text, alone=True)
    except NoAnswer:
        return False
    return True
