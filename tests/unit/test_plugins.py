"""Plug-ins: a name or "module:thing", with options that are checked before anything starts."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.families import (
    ADAPTERS,
    ADVANTAGES,
    BACKENDS,
    CORRECTIONS,
    DATASETS,
    ENGINES,
    LOSSES,
    SCORERS,
    TRANSPORTS,
)
from pipeline.plugins import build, check_call, find, make

SOURCE = """
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

if TYPE_CHECKING:
    from nowhere import Answer

MODULES = []
NOT_CALLABLE = 3


def scale(answer: Answer, *, factor: Annotated[float, Meta(ge=0)] = 1.0, words: list[str] = []):
    return answer * factor


class Ensemble:
    def __init__(self, first: int, *, model: str, given: str = "", strict: bool = False) -> None:
        self.parts = (first, model, given, strict)

    def __call__(self, answer: Answer) -> float:
        return 1.0


class Weighted:
    def __init__(self, *, weight: float = 1.0) -> None:
        self.weight = weight

    def __call__(self, answer: Answer) -> float:
        return answer * self.weight


class Plain:
    pass


class _Made:
    def __call__(self, answer: Answer, *, bonus: int = 0) -> int:
        return answer + bonus


made = _Made()


def unknown(answer, *, option: Answer) -> float:
    return 0.0
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_own.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("def half(:\n")
    (tmp_path / "loud.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    for name in ("users_own", "broken", "loud"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def refusal(spec: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build(SCORERS, spec, at="a.key")
    return str(caught.value)


def test_a_users_own_function_is_found_where_sluice_was_called_and_bound() -> None:
    assert build(SCORERS, "users_own:scale", at="a")(3) == 3.0
    spec = {"use": "users_own:scale", "factor": 2, "words": ["a"]}
    assert build(SCORERS, spec, at="a")(3) == 6.0


def test_a_part_is_made_with_its_options_and_what_the_program_gives() -> None:
    spec = {"use": "users_own:Ensemble", "model": "m", "strict": True}
    assert make(SCORERS, spec, 1, at="a", given="g").parts == (1, "m", "g", True)


def test_a_class_that_can_be_called_is_made_from_its_options() -> None:
    spec = {"use": "users_own:Weighted", "weight": 2}
    assert build(SCORERS, spec, at="a")(3) == 6.0


def test_an_object_that_can_be_called_is_bound() -> None:
    assert build(SCORERS, {"use": "users_own:made", "bonus": 2}, at="a")(3) == 5
    assert "did you mean 'bonus'" in refusal({"use": "users_own:made", "bonos": 2})


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("exat", "a.key = 'exat': no such plug-in; did you mean 'exact'? or"),
        (
            "zzz",
            "a.key = 'zzz': no such plug-in; known: choice, code, exact, format, http, json_schema,"
            " judge, kl_penalty, math, numeric, overlong, reasoning_gym, regex, reward_model,"
            " teacher or",
        ),
        ({"path": "x"}, "a.key = {'path': 'x'}: needs `use`"),
        ({"use": 3}, "a.key = {'use': 3}: needs `use`"),
        ("nowhere:x", "a.key = 'nowhere:x': cannot be imported (ModuleNotFoundError"),
        ("users_own:absent", "a.key = 'users_own:absent': cannot be imported (AttributeError"),
        ("users_own:", "a.key = 'users_own:': cannot be imported"),
        (":scale", "a.key = ':scale': cannot be imported"),
        ("broken:half", "a.key = 'broken:half': cannot be imported (SyntaxError"),
        ("loud:scale", "a.key = 'loud:scale': cannot be imported (RuntimeError: no licence)"),
        ("users_own:NOT_CALLABLE", "a.key = 'users_own:NOT_CALLABLE': is not callable"),
        (
            {"use": "users_own:scale", "factr": 2},
            "a.key.factr = 2: no such option; did you mean 'factor'?",
        ),
        (
            {"use": "users_own:scale", "answer": 2},
            "a.key.answer = 2: no such option; known: factor, words",
        ),
        (
            {"use": "users_own:scale", "factor": "2"},
            "a.key.factor = '2': Expected `float`, got `str`",
        ),
        ({"use": "users_own:scale", "factor": -1}, "a.key.factor = -1: Expected `float` >= 0"),
        ({"use": "users_own:scale", "words": ["a", 1]}, "a.key.words = ['a', 1]: Expected `str`"),
        (
            {"use": "exact", "strict": True},
            "a.key.strict = True: no such option; it has no options",
        ),
        ({"use": "users_own:Plain", "x": 1}, "a.key.x = 1: no such option; it has no options"),
        (
            {"use": "users_own:unknown", "option": 1},
            "a.key: the types of its options cannot be read",
        ),
    ],
)
def test_a_mistake_is_told_with_its_key_rule_and_remedy(spec: Any, line: str) -> None:
    assert refusal(spec).startswith(line)


def test_an_option_that_is_required_is_named() -> None:
    with pytest.raises(ConfigError, match=r"a\.key\.model: is required; add model"):
        make(SCORERS, "users_own:Ensemble", 1, at="a.key")


def test_what_the_program_gives_is_no_option() -> None:
    spec = {"use": "users_own:Ensemble", "model": "m", "given": "mine"}
    with pytest.raises(ConfigError, match="no such option; known: model, strict"):
        make(SCORERS, spec, 1, at="a.key", given="the program's")


@pytest.mark.parametrize(
    "table",
    [
        ADAPTERS,
        ENGINES,
        TRANSPORTS,
        DATASETS,
        SCORERS,
        ADVANTAGES,
        LOSSES,
        CORRECTIONS,
        BACKENDS,
    ],
)
def test_every_name_in_a_table_leads_to_a_callable(table: dict[str, str]) -> None:
    """Read, not imported: some of them load torch."""
    for target in table.values():
        module, _, attribute = target.partition(":")
        spec = importlib.util.find_spec(module)
        assert spec and spec.origin, module
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        assert attribute in defined, target


def test_a_plug_in_that_cannot_take_its_argument_is_refused_before_it_is_called() -> None:
    def none() -> float:
        return 0.0

    def two(first: object, second: object) -> float:
        return 0.0

    def one(answer: object, *, weight: float = 1.0) -> float:
        return weight

    class Callable_:
        def __call__(self, answer: object) -> float:
            return 0.0

    for good in (one, Callable_):
        check_call(good, "scoring.scorers[0]", None)
    for bad in (none, two):
        with pytest.raises(ConfigError, match="must take 1 positional argument"):
            check_call(bad, "scoring.scorers[0]", None)


def test_a_module_that_exits_while_it_is_imported_is_the_inputs_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaves_at_import.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="SystemExit"):
        find({}, "leaves_at_import:scorer", "scoring.scorers[0]")
