"""reasoning-gym as a data set: made on demand, options checked, entries that outlive JSON."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from reasoning_gym.factory import DATASETS as KNOWN

from pipeline.errors import ConfigError
from pipeline.families import DATASETS, SCORERS
from pipeline.plugins import build
from pipeline.protocols import Answer

SUM = {"use": "reasoning_gym", "name": "chain_sum", "size": 20, "seed": 3}


def opened(**spec: Any) -> Any:
    return build(DATASETS, {"use": "reasoning_gym", **spec}, at="data")


def refusal(**spec: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        opened(**spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_task_is_its_question_and_its_whole_entry() -> None:
    data = opened(**SUM, args={"max_terms": 2, "max_digits": 1})
    assert len(data) == 20
    example = data[7]
    assert example == opened(**SUM, args={"max_terms": 2, "max_digits": 1})[7]
    assert example.task == "chain_sum"
    assert isinstance(example.prompt, str) and example.prompt == example.reference["question"]
    assert example.reference["metadata"]["source_index"] == 7
    assert example.reference["args"] == {"max_terms": 2, "max_digits": 1}


def test_digests_tell_name_size_seed_and_args() -> None:
    specs = [
        {},
        {"name": "products"},
        {"size": 21},
        {"seed": 4},
        {"args": {"max_terms": 2}},
        {"args": {"max_terms": 3}},
    ]
    assert len({opened(**SUM | more).digest() for more in specs}) == len(specs)
    assert opened(**SUM).digest() == opened(**SUM).digest()


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            {"name": "chain_sums"},
            "data.name = 'chain_sums': reasoning-gym has no such data set; did",
        ),
        ({"name": "composite"}, "data.name = 'composite': reasoning-gym has no such data set"),
        (
            {"args": {"max_term": 2}},
            "data.args.max_term = 2: no such option; did you mean 'max_terms'",
        ),
        ({"args": {"seed": 2}}, "data.args.seed = 2: no such option"),
        ({"args": {"max_terms": "2"}}, "data.args.max_terms = '2': Expected `int`, got `str`"),
        ({"args": {"max_terms": 1}}, "data.args = {'max_terms': 1}: chain_sum refuses them"),
        ({"size": 0}, "data.size = 0: Expected `int` >= 1"),
        ({"name": "rearc"}, "data.name = 'rearc': its verdicts need tuples"),
    ],
)
def test_what_the_library_would_not_do_is_refused(more: dict[str, Any], line: str) -> None:
    assert refusal(**SUM | more).startswith(line)


def test_options_that_toml_has_no_kind_for_are_converted() -> None:
    data = opened(name="basic_arithmetic", size=9, args={"operators": ["+"], "max_terms": 2})
    assert all(" + " in data[i].reference["metadata"]["expression"] for i in range(9))


NO_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Their entries hold no answer of their own to give."""

QUICK = sorted(KNOWN.keys() - NO_ANSWER - {"composite", "arc_agi", "rearc"})[::6]


@pytest.mark.parametrize("name", QUICK)
def test_an_entrys_own_answer_is_worth_all_that_the_library_says(name: str) -> None:
    """Through the wire's JSON, and in the scorer's own data set."""
    data = opened(name=name, size=2, seed=1)
    scorer = build(SCORERS, {"use": "reasoning_gym", "extract": ""}, at="scoring.scorers")
    reference = msgspec.json.decode(msgspec.json.encode(data[1].reference))
    own = str(reference["answer"])
    verdict = scorer(Answer(text=own, prompt="", reference=reference, finish="stop"))
    assert verdict.reward == KNOWN[name][0](KNOWN[name][1](size=2, seed=1)).score_answer(
        own, data[1].reference
    )
    assert verdict.outcome == 1.0
