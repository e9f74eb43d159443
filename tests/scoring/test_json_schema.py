"""`json_schema`: JSON, strictly, of the shape that a schema asks for; and nothing is fetched."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from asked import told
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.families import SCORERS
from pipeline.plugins import build
from pipeline.protocols import Answer
from pipeline.verdicts import Fault
from services.scoring.pool import Pool

PART = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 10}, "tags": {"uniqueItems": True}},
    "required": ["n"],
    "additionalProperties": False,
}
TREE = {"$defs": {"t": {"properties": {"c": {"$ref": "#/$defs/t"}}, "type": "object"}},
        "$ref": "#/$defs/t"}  # fmt: skip


def asked(
    text: str, schema: Any = PART, reference: Any = None, **options: Any
) -> tuple[float, str]:
    return told({"use": "json_schema", "schema": schema, **options}, text, reference)


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 3}',
        ' \n{"n":3}\n',
        '{"n": 3.0}',
        '{"n": -1e1, "tags": [1, 2, "1", true]}',
        '<think>{"n": 99}</think>\n{"n": 3}',
        '```json\n{"n": 3}\n```',
        '```\n{"n": 3}\n```',
        'Here it is:\n\n```JSON\n{"n": 3}\n```\nAs you asked.',
        '```python\nprint({})\n```\n```json\n{"n": 3}\n```',
        '````json\n{"n": 3}\n````',
        '{"n": 3, "tags": ["\\u0000", "```"]}',
    ],
)
def test_json_of_the_shape_is_right_alone_or_in_its_fence(text: str) -> None:
    assert asked(text) == (1.0, "right")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"n": 30}', "wrong"),
        ('{"n": "3"}', "wrong"),
        ('{"n": true}', "wrong"),
        ('{"n": 3.5}', "wrong"),
        ('{"n": 3, "x": 1}', "wrong"),
        ('{"n": 3, "tags": [1, 1.0]}', "wrong"),
        ('[{"n": 3}]', "wrong"),
        ('"{\\"n\\": 3}"', "wrong"),
        ("null", "wrong"),
        ("", "no_final_answer"),
        ("```json\n```", "no_final_answer"),
        ('{"n": 3', "not_understood"),
        ('{"n": 3} yes', "not_understood"),
        ('Sure: {"n": 3}', "not_understood"),
        ('{"n": 3}{"n": 3}', "not_understood"),
        ('{"n": 30, "n": 3}', "not_understood"),
        ('{"n": 3, "tags": [{"a": 1, "a": 1}]}', "not_understood"),
        ('{"n": NaN}', "not_understood"),
        ('{"n": -Infinity}', "not_understood"),
        ("{'n': 3}", "not_understood"),
        ('{"n": 3,}', "not_understood"),
        ('{"n": 03}', "not_understood"),
        ('{"n": 3} // so', "not_understood"),
        ('{"n": 3}\x00', "not_understood"),
        ('{"n": \N{ARABIC-INDIC DIGIT THREE}}', "not_understood"),
        ('{"n": 1e400}', "too_large"),
        ('{"n": ' + "9" * 5000 + "}", "too_large"),
        ("[" * 100_000, "too_large"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "too_large"),
        ('"' + "x" * 2_000_000 + '"', "too_large"),
        ('```json\n{"n": 3}', "no_final_answer"),
        ('```json\n{"n": 3}\n```\n```json\n{"n": 4}\n```', "several_answers"),
        ('<think>{"n": 3}', "no_final_answer"),
    ],
    ids=lambda value: value[:24],
)
def test_anything_else_is_worth_0_and_says_why(text: str, why: str) -> None:
    assert asked(text) == (0.0, why)


@pytest.mark.parametrize(
    ("step", "number", "reward"),
    [
        (0.01, "19.99", 1.0),
        (0.01, "4.35", 1.0),
        (0.01, "0.015", 0.0),
        (2, "1e3", 1.0),
        (2, "3", 0.0),
    ],
)
def test_a_multiple_is_worked_out_in_decimals(step: float, number: str, reward: float) -> None:
    assert asked(number, {"multipleOf": step})[0] == reward


def test_thousands_of_unlike_objects_cost_no_time() -> None:
    unique = {"uniqueItems": True}
    many = [{"a": number, "b": [number]} for number in range(5000)]
    started = time.perf_counter()
    assert asked(json.dumps(many), unique)[0] == 1.0
    assert asked(json.dumps([*many, {"b": [7.0], "a": 7}]), unique)[0] == 0.0
    assert asked("[1, true, [1], [true], 0, false]", unique)[0] == 1.0
    assert time.perf_counter() - started < 5.0


def test_a_prompt_can_end_with_the_fence_of_the_value() -> None:
    prompt = "The part as JSON:\n```json\n"
    assert told({"use": "json_schema", "schema": {}}, "[1]\n```", prompt=prompt)[0] == 1.0


@pytest.mark.parametrize(
    ("options", "text", "reward"),
    [
        ({"fence": "needed"}, '{"n": 3}', 0.0),
        ({"fence": "needed"}, '```json\n{"n": 3}\n```', 1.0),
        ({"fence": "refused"}, '{"n": 3}', 1.0),
        ({"fence": "refused"}, '```json\n{"n": 3}\n```', 0.0),
    ],
)
def test_a_fence_is_needed_or_refused_as_the_run_has_it(
    options: dict[str, Any], text: str, reward: float
) -> None:
    assert asked(text, **options)[0] == reward


@pytest.mark.parametrize(
    ("text", "reference", "same"),
    [
        ('{"a": 1, "b": [1, 2]}', {"b": [1, 2], "a": 1.0}, True),
        ("[1, 2]", [2, 1], False),
        ("1", True, False),
        ("0", False, False),
        ("true", True, True),
        ('"1"', 1, False),
        ("0.1", 0.1, True),
        ("9007199254740993", 9007199254740993, True),
        ("9007199254740993.0", 9007199254740993, False),
        ("[1]", [1, None], False),
        ("[1, null]", [1], False),
        ('{"a": null}', {}, False),
    ],
)
def test_the_value_can_have_to_be_the_reference(text: str, reference: Any, same: bool) -> None:
    assert asked(text, {}, reference, against="reference")[0] == same


def test_without_a_reference_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(ValueError, match="there is no reference"):
        asked("null", {}, against="reference")


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ({"type": "objct"}, "schema: is no schema: 'objct' is not valid"),
        ({"minimum": "3"}, "schema: is no schema: '3' is not of type 'number' at $.minimum"),
        ({"properties": {"a": {"pattern": "("}}}, "schema: is no schema: '(' is not a 'regex'"),
        ({"$ref": "http://localhost:9/x"}, "schema: is no schema: it refers to http://localhost:"),
        ({"items": {"$ref": "file:///etc/x"}}, "schema: is no schema: it refers to file:///etc/x,"),
        ({"items": {"$ref": "#/$defs/no"}}, "schema: is no schema: it refers to /$defs/no, which"),
        ({"$ref": "#"}, "schema: is no schema: it refers to itself for ever"),
        ({"items": {"$ref": "#/items"}}, "schema: is no schema: it refers to itself for ever"),
        ({"allOf": [{"$ref": "#"}]}, "schema: is no schema: it refers to itself for ever"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#"},
            "schema.$schema = 'http://json-sche",
        ),
        ("/no/such.json", "schema = '/no/such.json': cannot be read as JSON"),
        (3, "schema = 3: Expected `str | object`, got `int`"),
    ],
    ids=str,
)
def test_a_schema_that_is_none_is_refused_at_the_start(schema: Any, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(SCORERS, {"use": "json_schema", "schema": schema}, at="scoring.scorers")
    assert str(caught.value).startswith(f"scoring.scorers.{line}")


@pytest.mark.parametrize("keyword", ["items", "allOf", "not a keyword"])
def test_no_reference_is_ever_fetched(keyword: str) -> None:
    """Not even from a server that is there: nobody connects to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        elsewhere = {"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/x.json"}
        inner = [elsewhere] if keyword == "allOf" else {"items": elsewhere}
        schema = {"prefixItems": [{"$ref": f"#/{keyword}"}], keyword: inner}
        if keyword == "allOf":
            schema["prefixItems"] = [{"$ref": "#/allOf/0"}]
        with pytest.raises(ConfigError, match="nothing is fetched"):
            asked("[[1]]", schema)
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_drafts_own_schema_is_known_without_fetching() -> None:
    schema = {"$ref": "https://json-schema.org/draft/2020-12/schema"}
    assert asked('{"type": "string"}', schema)[0] == 1.0
    assert asked('{"type": "strng"}', schema)[0] == 0.0


def test_what_is_deeper_than_read_is_too_large_whatever_the_schema_says() -> None:
    assert asked("[" * 100 + "]" * 100, {}) == (1.0, "right")
    assert asked("[" * 101 + "]" * 101, {}) == (0.0, "too_large")
    assert asked('["' + "[" * 200 + '", "\\"["]', {}) == (1.0, "right")


def test_a_schema_that_refers_to_itself_within_bounds_is_followed() -> None:
    assert asked('{"c":' * 99 + "{}" + "}" * 99, TREE)[0] == 1.0
    assert asked('{"c":' * 99 + "1" + "}" * 99, TREE)[0] == 0.0


def test_a_file_is_read_and_its_content_is_in_the_version(tmp_path: Path) -> None:
    file = tmp_path / "part.json"
    versions = []
    for schema in (PART, TREE):
        file.write_text(json.dumps(schema))
        made = build(SCORERS, {"use": "json_schema", "schema": str(file)}, at="scoring.scorers")
        versions.append(made.version)
    assert len({*versions}) == 2
    inline = build(SCORERS, {"use": "json_schema", "schema": TREE}, at="scoring.scorers")
    assert inline.version == versions[1]


def test_C046_a_pattern_that_backtracks_for_ever_costs_its_answer_and_no_other() -> None:
    """Of a schema and of `regex` alike: the time limit of the worker ends it."""
    evil = "^(a+)+$"
    specs = [{"use": "json_schema", "schema": {"pattern": evil}},
             {"use": "regex", "pattern": evil}]  # fmt: skip
    text = "a" * 40 + "!"

    async def grade() -> list[float | str]:
        pool = Pool(specs, workers=1, timeout_seconds=0.5)
        await pool.start()
        try:
            asked = [(0, f'"{text}"'), (1, text), (0, '"aa"'), (1, "aa")]
            return [await _outcome(pool, number, text) for number, text in asked]
        finally:
            await pool.close()

    assert asyncio.run(grade()) == ["timeout", "timeout", 1.0, 1.0]


async def _outcome(pool: Pool, number: int, text: str) -> float | str:
    try:
        answer = Answer(text=text, prompt="", reference=None, finish="stop")
        return (await pool.grade(number, answer)).reward
    except Fault as fault:
        return str(fault)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=4)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
PLACES = ("{}", "\n{} ", "<think>[1]</think>{}", "```json\n{}\n```", "So:\n```\n{}\n```\n")


def shuffled(value: Any, rng: Random) -> Any:
    """The same value, its keys in another order."""
    if isinstance(value, dict):
        pairs = [(key, shuffled(inner, rng)) for key, inner in value.items()]
        return dict(rng.sample(pairs, len(pairs)))
    return [shuffled(inner, rng) for inner in value] if isinstance(value, list) else value


def near(value: Any, rng: Random) -> Any:
    """Another value that differs in one place."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice([*value])
        rest = {name: inner for name, inner in value.items() if name != key}
        return rest if rng.random() < 0.3 else {**rest, key: near(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [*value[:place], near(value[place], rng), *value[place + 1 :]]
    return rng.choice([[value], {"a": value}, json.dumps(value)])


@settings(max_examples=100, deadline=None)
@given(VALUES, st.integers(0, 2**62))
def test_rewritings_are_the_reference_and_near_misses_are_not(value: Any, seed: int) -> None:
    rng = Random(seed)
    options = {"indent": rng.choice([None, 1]), "ensure_ascii": rng.random() < 0.5}
    if value is None:
        return
    for given_, reward in ((shuffled(value, rng), 1.0), (near(value, rng), 0.0)):
        text = rng.choice(PLACES).format(json.dumps(given_, **options))
        assert asked(text, {}, value, against="reference")[0] == reward, (value, text)
    broken = json.dumps(value) + rng.choice([",", " .", "]", "}", ' "', " 1", "\n\nDone."])
    assert asked(broken, {}, value, against="reference")[0] == 0.0
