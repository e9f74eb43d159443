"""RUN.toml and its overrides: whatever is wrong is told by key, value, rule and remedy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import documented, dump, load, nearest
from pipeline.errors import ConfigError
from pipeline.run import MaxAge, Run

LEAST = """
name = "least"
steps = 3
data = { use = "jsonl", path = "prompts.jsonl" }
model = { path = "model" }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(LEAST)
    return path


def refusal(path: Path, *overrides: str, more: str = "") -> str:
    """The one line that the user reads."""
    path.write_text(path.read_text() + more)
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


def test_the_least_run_has_defaults_for_the_rest(path: Path) -> None:
    run = load(path)
    assert (run.name, run.model.path, run.lag.max, run.bus.lease_seconds) == (
        "least",
        "model",
        2,
        15.0,
    )
    assert run.window == 3 * run.groups.per_step
    assert run.evaluation is None


@pytest.mark.parametrize(
    ("more", "key", "remedy"),
    [
        ("[lag]\nmaxx = 1", "lag.maxx", "did you mean 'lag.max'?"),
        ("[lags]\nmax = 1", "lags", "did you mean 'lag'?"),
        ("[training]\nlr = 1.0", "training.lr", "training.learning_rate, training.pack"),
        ("[training]\nlearningrate = 1.0", "training.learningrate", "'training.learning_rate'?"),
        ("[groups]\nworkers = 2", "groups.workers", "did you mean 'scoring.workers'?"),
        (
            "[evaluation]\ndata = 'x'\nevry = 2",
            "evaluation.evry",
            "did you mean 'evaluation.every'?",
        ),
    ],
)
def test_a_key_that_does_not_exist_names_the_nearest(
    path: Path, more: str, key: str, remedy: str
) -> None:
    line = refusal(path, "steps=2", more=more)
    assert line.startswith(f"{key}: no such key; ")
    assert remedy in line


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("lag.max='2'", "--set lag.max = '2': expected `int`, got `str`"),
        ("lag.max=2.5", "--set lag.max = 2.5: expected `int`, got `float`"),
        ("lag.max=true", "--set lag.max = True: expected `int`, got `bool`"),
        ("lag.max=-1", "--set lag.max = -1: expected `int` >= 0"),
        ("lag=2", "--set lag = 2: expected `table`, got `int`"),
        ("lag.unit=tokens", "--set lag.unit = 'tokens': is no choice; did you mean 'token'?"),
        ("model.dtype=int8", "--set model.dtype = 'int8': is no choice; known: bfloat16, float32"),
        (
            "inference.swap=drian",
            "--set inference.swap = 'drian': is no choice; did you mean 'drain'?",
        ),
        (
            "inference.swap=3",
            "--set inference.swap = 3: is no choice; known: drain, keep, recompute",
        ),
        ("inference.swap.max_age=-1", "--set inference.swap.max_age = -1: expected `int` >= 0"),
        (
            "inference.swap={ age = 1 }",
            "--set inference.swap = {'age': 1}: table contains unknown field `age`",
        ),
        (
            "inference.swap={}",
            "--set inference.swap.max_age: is required; add inference.swap.max_age",
        ),
        ("steps=0", "--set steps = 0: expected `int` >= 1"),
        ("seed=9223372036854775808", "--set seed = 9223372036854775808: expected `int` <= "),
        ("groups.members=0", "--set groups.members = 0: expected `int` >= 1"),
        ("evaluation.members=5000", "--set evaluation.members = 5000: expected `int` <= 4096"),
        ("sampling.temperature=0", "--set sampling.temperature = 0: expected `float` > 0.0"),
        ("sampling.top_p=0", "--set sampling.top_p = 0: expected `float` > 0.0"),
        (f"sampling.top_k={2**31}", "--set sampling.top_k = 2147483648: expected `int` <= 21474"),
        ("sampling.top_p=1.5", "--set sampling.top_p = 1.5: expected `float` <= 1.0"),
        ("sampling.top_k=-1", "--set sampling.top_k = -1: expected `int` >= 0"),
        ("sampling.min_p=1", "--set sampling.min_p = 1: expected `float` < 1.0"),
        ("scoring.scorers=[]", "--set scoring.scorers = []: expected `array` of length >= 1"),
        ("scoring.scorers=[3]", "--set scoring.scorers[0]: expected `str | table`, got `int`"),
        ("scoring.timeout_seconds=inf", "--set scoring.timeout_seconds = inf: is no quantity"),
        ("training.learning_rate=nan", "--set training.learning_rate = nan: is no quantity"),
        (
            "objective.loss={ use = 'ppo', clip = inf }",
            "--set objective.loss.clip = inf: is no quantity",
        ),
        ("name='a/b'", "--set name = 'a/b': expected `str` matching"),
        ("evaluation.every=2", "evaluation.data: is required; add evaluation.data"),
        ("lag.max", "--set = 'lag.max': needs KEY=VALUE"),
        ("=2", "--set = '=2': needs KEY=VALUE"),
        ("lag.max.more=2", "--set lag.max = {'more': 2}: expected `int`"),
        ("steps.more=2", "--set steps.more: steps is no section"),
        ("lag..max=2", "--set lag.: no such key"),
        ("nme=x", "--set nme: no such key; did you mean 'name'?"),
    ],
)
def test_a_wrong_value_is_told_with_its_key_and_rule(path: Path, override: str, line: str) -> None:
    assert refusal(path, override).startswith(line)


@pytest.mark.parametrize("key", ["name", "steps", "model", "data"])
def test_a_missing_key_is_named(path: Path, key: str) -> None:
    lines = [line for line in LEAST.splitlines() if not line.startswith(key)]
    path.write_text("\n".join(lines))
    assert refusal(path) == f"{key}: is required; add {key}"


def test_a_missing_key_of_a_section_is_named_in_full(path: Path) -> None:
    path.write_text(LEAST.replace('path = "model"', 'dtype = "float32"'))
    assert refusal(path) == "model.path: is required; add model.path"


def test_what_is_no_toml_is_told_with_its_place(path: Path) -> None:
    assert refusal(path, more="[lag\nmax = 2\n").startswith("not TOML: ")
    assert "line 6" in refusal(path)
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(ConfigError, match="not TOML: "):
        load(path)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(ConfigError, match=r"cannot be read \(.*\); name a RUN\.toml"):
            load(path)


def test_overrides_win_over_the_file_in_their_order(path: Path) -> None:
    path.write_text(LEAST + "[lag]\nmax = 7\n")
    assert load(path).lag.max == 7
    assert load(path, ["lag.max=3", "lag.max=4"]).lag.max == 4


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("lag.max=4", "lag", "max", 4),
        (" lag.max = 4 ", "lag", "max", 4),
        ("lag.unit=sample", "lag", "unit", "sample"),
        ('lag.unit="sample"', "lag", "unit", "sample"),
        ("scoring.timeout_seconds=3", "scoring", "timeout_seconds", 3.0),
        (
            "scoring.scorers=['a', { use = 'b', c = 1 }]",
            "scoring",
            "scorers",
            ["a", {"use": "b", "c": 1}],
        ),
        ("bus.url=redis://h:1/0?a=b", "bus", "url", "redis://h:1/0?a=b"),
        ("model.path=", "model", "path", ""),
        ("inference.engine.slots=8", "inference", "engine", {"use": "hf", "slots": 8}),
        ("objective.loss.low=0.5", "objective", "loss", {"use": "cispo", "low": 0.5}),
        ("objective.loss.use=ppo", "objective", "loss", {"use": "ppo"}),
    ],
)
def test_an_override_is_toml_or_else_plain_text(
    path: Path, override: str, section: str, key: str, value: Any
) -> None:
    assert getattr(getattr(load(path, [override]), section), key) == value


def test_an_option_joins_a_plug_in_that_stands_by_its_name(path: Path) -> None:
    path.write_text(LEAST + '[inference]\nengine = "fake"\n')
    assert load(path, ["inference.engine.slots=8"]).inference.engine == {"use": "fake", "slots": 8}


@pytest.mark.parametrize("stands", ["", "[inference]\nswap = 'drain'\n"])
def test_a_word_gives_way_to_a_table(path: Path, stands: str) -> None:
    path.write_text(LEAST + stands)
    for override in ("inference.swap={ max_age = 2 }", "inference.swap.max_age=2"):
        run = load(path, [override])
        assert run.inference.swap == MaxAge(max_age=2)
        (path.parent / "dumped.toml").write_text(dump(run))
        assert load(path.parent / "dumped.toml") == run


def test_dump_is_read_back_to_the_same_run(path: Path) -> None:
    overrides = [
        "data={ use = 'jsonl', path = 'a \"b\" \\\\ c', args = { 'a.b' = 1, e = {}, l = [1] } }",
        "training.learning_rate=1e-6",
        "evaluation.data={ use = 'jsonl', path = 'ü' }",
        "scoring.scorers=['exact', { use = 'exact' }]",
        "seed=-3",
    ]
    run = load(path, overrides)
    path.write_text(dump(run))
    assert load(path) == run
    assert dump(load(path)) == dump(run)


options = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('ab." ü-', min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60)
@given(value=options)
def test_any_option_of_a_plug_in_survives_dump(
    value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"any-{os.getpid()}.toml"
    path.write_text(LEAST)
    run = load(path)
    changed = Run(name="x", steps=1, model=run.model, data={"use": "jsonl", "option": value})
    path.write_text(dump(changed), encoding="utf-8")
    assert load(path) == changed


def test_every_key_is_documented_in_its_struct_once() -> None:
    keys = [key for key, _, _ in documented(Run)]
    assert len(keys) == len(set(keys))
    assert {"steps", "lag.max", "evaluation.every", "bus.url"} <= set(keys)
    assert "lag" not in keys


def test_nearest_lists_everything_where_nothing_is_near() -> None:
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    assert nearest("stops", ["steps", "seed"]) == "did you mean 'steps'?"


def test_an_override_is_one_value_and_no_further_lines_of_toml(path: Path) -> None:
    assert "name" in refusal(path, 'name="x"\nsteps=3')
