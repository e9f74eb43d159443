"""What a run's parts take is known before any of them is imported, and told in the docs."""

from __future__ import annotations

import inspect
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import plugin_options
import pytest

from pipeline import plugins
from pipeline.errors import ConfigError
from pipeline.options import FAMILIES, GIVEN, check_options
from pipeline.run import Run

MAY_BE_ABSENT = {
    ("training.backend", "deepspeed"): [
        *("stage", "betas", "weight_decay", "clip_norm", "whole_elements", "chunk_elements"),
    ],
    ("training.sinks", "tensorboard"): [],
    ("training.sinks", "wandb"): ["project"],
}
"""What those take whose library need not be here."""

NEED_VLLM = ("vllm", "nccl", "ipc")


def case(key: str, name: str, *more: str) -> Any:
    """A plug-in; tested in vLLM's environment where it cannot be imported elsewhere."""
    marks = [pytest.mark.vllm] if name in NEED_VLLM else []
    return pytest.param(key, name, *more, marks=marks, id="-".join((key, name, *more)))


BUILT_IN = [case(key, name) for key, names in FAMILIES.items() for name in names]
BEFORE: dict[str, list[str]] = {"scoring.scorers": ["exact"], "training.sinks": []}
"""Of the keys that take a list: what stands in front, since some scorers may not."""

SOURCE = """
from os.path import join
from functools import cache, wraps

raise RuntimeError("was imported")

def plain(answer, *, factor=1.0): ...
async def late(answer, *, factor=1.0): ...
class Ensemble:
    def __init__(self, *, factor=1.0): ...
    def __call__(self, answer): ...

def any_of(answer, *, factor=1.0, **rest): ...
@cache
def wrapped(answer, *, factor=1.0): ...
class Heir(Ensemble):
    pass
def twice(answer, *, factor=1.0): ...
def twice(answer, *, colour): ...
def changed(answer, *, factor=1.0): ...
changed = plain
"""


def run_with(key: str, spec: Any, *, at: str = "") -> Run:
    """A run that names the part."""
    tree: dict[str, Any] = {"name": "run", "steps": 1, "data": "jsonl", "model": {"path": "m"}}
    section, _, last = (at or key).rpartition(".")
    held = tree.setdefault(section, {}) if section else tree
    held[last] = [*BEFORE[key], spec] if key in BEFORE else spec
    return msgspec.convert(tree, Run)


def taken(key: str, name: str) -> list[str]:
    """The options of a plug-in, as Python knows them once it is imported."""
    if (key, name) in MAY_BE_ABSENT:
        return MAY_BE_ABSENT[key, name]
    parameters = inspect.signature(plugins.find(FAMILIES[key], name, key)).parameters.values()
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    return [option for option in named if option not in GIVEN.get(key, ())]


@pytest.mark.parametrize(("key", "name"), BUILT_IN)
def test_each_option_of_a_part_is_taken_and_no_other(key: str, name: str) -> None:
    options = taken(key, name)
    check_options(run_with(key, {"use": name} | dict.fromkeys(options)))
    for wrong in ("made_up", *GIVEN.get(key, ())):
        with pytest.raises(ConfigError) as caught:
            check_options(run_with(key, {"use": name, wrong: 1}))
        at = f"{key}[{len(BEFORE[key])}]" if key in BEFORE else key
        assert str(caught.value).startswith(f"{at}.{wrong} = 1: no such option; ")


LIGHT = [
    case(key, name, where)
    for key, names in plugin_options.FAMILIES.items()
    for name, where in names.items()
    if key not in ("training.backend", "training.sinks")  # these need what may not be here
]


@cache
def told_rows() -> list[str]:
    return "".join(plugin_options.table()).splitlines()


@pytest.mark.parametrize(("key", "name", "where"), LIGHT)
def test_an_option_that_is_told_is_one_that_is_taken(key: str, name: str, where: str) -> None:
    """Told in docs/configuration.md."""
    thing = plugins.find({name: where}, name, key)
    taken = {
        p.name: p for p in inspect.signature(thing).parameters.values() if p.kind is p.KEYWORD_ONLY
    }
    for given in plugin_options.GIVEN.get(key, ()):
        taken.pop(given, None)
    told = [row for row in told_rows() if f"| `{key}` | `{name}` |" in row]
    assert [row.split("|")[3].strip(" `") for row in told] == ([*taken] or ["—"])
    for row, parameter in zip(told, taken.values(), strict=False):
        is_required = row.split("|")[5].strip() == "required"
        assert is_required == (parameter.default is parameter.empty)


def test_the_data_of_an_evaluation_is_a_part_too() -> None:
    run = run_with("data", {"use": "jsonl", "pth": "x"}, at="evaluation.data")
    with pytest.raises(ConfigError, match=r"^evaluation\.data\.pth = 'x': .* did you mean 'path'"):
        check_options(run)


def test_a_key_that_stands_beside_any_scorer_is_named_where_it_is_misspelt() -> None:
    run = run_with("scoring.scorers", {"use": "exact", "weigth": 2.0})
    with pytest.raises(ConfigError, match=r"\[1\]\.weigth = 2\.0: .* did you mean 'weight'"):
        check_options(run)


def test_the_line_is_the_one_that_the_part_itself_would_be_refused_with() -> None:
    spec = {"use": "ppo", "clip": 0.1}
    lines = []
    for refuse in (
        lambda: check_options(run_with("objective.loss", spec)),
        lambda: plugins.build(FAMILIES["objective.loss"], spec, at="objective.loss"),
    ):
        with pytest.raises(ConfigError) as caught:
            refuse()
        lines.append(str(caught.value))
    assert lines[0] == lines[1]
    assert lines[0].startswith("objective.loss.clip = 0.1: no such option; ")


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "strangers_own"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('was imported')\n")
    (package / "parts.py").write_text(SOURCE)
    (package / "torn.py").write_text("def plain(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize("name", ["plain", "late", "Ensemble"])
def test_a_users_own_part_is_read_and_not_imported(name: str) -> None:
    use = f"strangers_own.parts:{name}"
    check_options(run_with("objective.loss", {"use": use, "factor": 2}))
    with pytest.raises(ConfigError, match="no such option; did you mean 'factor'"):
        check_options(run_with("objective.loss", {"use": use, "factr": 2}))


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize(
    "use",
    [
        *(f"parts:{name}" for name in ("any_of", "wrapped", "Heir", "twice", "changed", "join")),
        *("parts:absent", "torn:plain", "gone:plain", "gone.deeper:plain", ":plain", "parts:"),
    ],
)
def test_what_the_text_does_not_show_is_left_to_the_process_that_uses_it(use: str) -> None:
    check_options(run_with("objective.loss", {"use": f"strangers_own.{use}", "colour": 2}))
