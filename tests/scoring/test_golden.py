"""Versions and golden sets: what a scorer is told apart by, and `sluice score test`."""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipeline.errors import ConfigError, SluiceError
from pipeline.metrics import Metrics
from pipeline.protocols import Answer
from pipeline.run import Model, Run, Spec
from pipeline.run import Scoring as ScoringKeys
from services.scoring.contents import content_hash
from services.scoring.ensemble import make_ensemble
from services.scoring.golden import read_golden
from services.scoring.metrics import Numbers
from services.scoring.trial import trial

HERE = Path(__file__).parent
TREE = {
    "checks/__init__.py": "",
    "checks/judge.py": (
        "from . import rules\n"
        "def judge(answer, *, limit=1):\n"
        "    from checks.deep.lazily import late\n"
        "    return rules.right(answer) * late() * len(answer.text + 'rubric.txt')\n"
        "INSIDE = 'inside'\n"
    ),
    "checks/rules.py": "import beside\nfrom checks.deep import LIMIT\nright = beside.equal\n",
    "checks/deep/__init__.py": "LIMIT = 3\n",
    "checks/deep/lazily.py": "import json, nowhere.at_all\ndef late(): return 1\n",
    "checks/rubric.txt": "be kind\n",
    "checks/inside/__init__.py": "",
    "checks/inside/runs.py": "print(1)\n",
    "checks/apart.py": "import checks.judge\n",
    "beside.py": "from services.scoring.scorers.text.strings import exact as equal\n",
    "apart.py": "",
}
"""A scorer, `checks.judge:judge`, and what it reaches by an import of every kind, and two that it
does not."""
COUNTED = [name for name in TREE if "apart" not in name and name != "checks/__init__.py"]

Made = Callable[..., str]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """The hash of the scorer in a new folder, with some of the files changed."""

    def make(spec: Spec = "checks.judge:judge", ends: str = "\n", **changed: str) -> str:
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        for name, text in {**TREE, **changed}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text.replace("\n", ends).encode())
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            importlib.invalidate_caches()
            return content_hash(spec, test_the_same_text_has_the_same_hash)

    return make


def test_the_same_text_has_the_same_hash(made: Made) -> None:
    """Wherever it lies, and however that machine ends its lines."""
    assert made() == made() == made(ends="\r\n")
    assert len(made()) == 8 and int(made(), 16) >= 0


@pytest.mark.parametrize("name", COUNTED)
def test_C052_the_hash_changes_with_any_line_that_the_scorer_reaches(made: Made, name: str) -> None:
    assert made(**{name: TREE[name] + "# \n"}) != made()


def test_what_the_scorer_does_not_reach_changes_nothing(made: Made) -> None:
    changed = {name: "def other(): ...\n" for name in ("checks/apart.py", "apart.py")}
    assert made(**changed) == made()
    assert made(**{"checks/rules.py": "import ("}) != made(), "what cannot be read counts, too"


def test_options_are_part_of_it_in_any_order(made: Made) -> None:
    named: dict[str, Any] = {"use": "checks.judge:judge", "limit": 2, "deep": {"a": [1], "b": "ü"}}
    assert made(named) == made(dict(reversed(named.items())))
    assert made(named) != made({**named, "limit": 3})
    assert made({"use": "checks.judge:judge"}) == made()


class Judge:
    """To be called, or to call a method of."""

    def __call__(self, answer: Answer) -> float:
        return 1.0

    def method(self, answer: Answer) -> float:
        return 1.0


method, partial, thing = Judge().method, functools.partial(Judge.method, Judge()), Judge()


@pytest.mark.parametrize(
    ("use", "called"),
    [
        ("test_golden:method", method),
        ("test_golden:partial", partial),
        ("test_golden:thing", thing),
        ("test_golden:Judge", Judge),
        ("math:isqrt", math.isqrt),
        ("builtins:len", len),
        ("__main__:anything", eval("lambda answer: 1.0", {"__name__": "__main__"})),
        ("numpy._core._multiarray_umath:dot", object()),
        ("no.such:thing", object()),
        ("made_up:thing", object()),
    ],
)
def test_whatever_can_be_called_has_a_hash(
    use: str, called: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "made_up", ModuleType("made_up"))
    assert len({content_hash(use, called), content_hash({"use": use}, called)}) == 1


CHANGES = """
import importlib, sys
from services.scoring.contents import content_hash

def hashes():
    importlib.invalidate_caches()
    return [content_hash(use, object()) for use in ("regex", "overlong", "mine:thing")]

before = hashes()
for name in sys.argv[1:]:
    with open(name, "a") as file:
        file.write("# \\n")
    after = hashes()
    print(name, *(old != new for old, new in zip(before, after)))
    before = after
"""


def test_of_what_ships_the_scorers_count_and_not_what_stands_around_them(tmp_path: Path) -> None:
    """In a copy, of which one module after another is changed; `mine` makes use of `overlong`."""
    scorers = "services/scoring/scorers"
    changed = ("pipeline/protocols.py", f"{scorers}/text/overlong.py", f"{scorers}/text/strings.py")
    for package in ("pipeline", "services"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(HERE.parents[1] / package, tmp_path / package, ignore=ignore)
    (tmp_path / "mine.py").write_text("from services.scoring.scorers.text import overlong\n")
    done = subprocess.run(
        [sys.executable, "-c", CHANGES, *changed],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line.split()[1:] for line in done.stdout.splitlines()] == [
        ["False", "False", "False"],
        ["False", "True", "True"],
        ["True", "False", "False"],
    ], done.stderr


def test_a_score_names_scorer_version_and_hash_and_no_weight() -> None:
    def name(spec: Spec) -> str:
        keys = ScoringKeys(scorers=["exact", spec])
        return make_ensemble(keys, numbers=Numbers(Metrics("scoring"))).seats[1].name

    scaled = {"use": "strangers:Scaled", "factor": 0.5}
    assert name(scaled).startswith("strangers:Scaled/2.1@")
    assert name(scaled) == name({**scaled, "weight": 3.0}) == name({**scaled, "shadow": True})
    assert name(scaled) != name({**scaled, "factor": 0.25})


def test_how_a_scorer_is_asked_is_no_part_of_what_must_not_change_in_a_run() -> None:
    def identity(spec: Spec) -> str:
        run = Run(
            name="r", steps=1, data="none", model=Model(path="m"),
            scoring=ScoringKeys(scorers=[spec]),
        )  # fmt: skip
        return run.identity["scoring.scorers"]

    asked = {"golden": "f", "golden_minutes": 1.0, "concurrency": 2, "timeout_seconds": 3.0}
    assert identity("exact") == identity({"use": "exact", **asked})
    assert identity({"use": "regex", "pattern": "a", **asked}) == identity(
        {"use": "regex", "pattern": "a"}
    )
    assert identity({"use": "exact", "weight": 2.0}) != identity("exact")


LINE = '{"id": "a", "answer": "42", "completion": "42", "expected": true}'


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (f"{LINE}\nno JSON\n", "line 2: JSON is malformed"),
        (f"{LINE}\n\n{LINE}\n", "line 3 = 'a': another line has that id"),
        (LINE.replace("true", '"yes"'), "line 1: Expected `bool | float`, got `str`"),
        (LINE.replace("answer", "reference"), "line 1: Object contains unknown field `reference`"),
        (LINE.replace('"id": "a", ', ""), "line 1: Object missing required field `id`"),
        (LINE.replace('"a"', '""'), "line 1: Expected `str` of length >= 1"),
        (LINE.replace('"42", "comp', '"42", "finish": "gone", "comp'), "Invalid enum value 'gone'"),
        ("[1]", "line 1: Expected `object`, got `array`"),
        (LINE.replace("42", "\udcff"), "line 1: "),
        ("\n \n", "holds no line"),
        ("", "holds no line"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_golden_file_is_read_strictly(tmp_path: Path, content: str | None, error: str) -> None:
    path = tmp_path / "golden.jsonl"
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        read_golden(path)
    said = str(caught.value)
    assert said.startswith(str(path)) and error in said and "\n" not in said


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("exat", ()), "did you mean 'exact'?"),
        (("exact", ("strict=true",)), "scoring.scorers.strict = True: no such option"),
        (("exact", ("strict",)), "--option = 'strict': needs KEY=VALUE"),
        (("regex", ("pattern=(",)), "is no pattern"),
        (("exact", ("weight=heavy",)), "scoring.scorers.weight = 'heavy': Expected `float`"),
        (("nowhere:scorer", ()), "cannot be imported"),
        (("strangers:Unhurried", ()), "may take an answer 100 s, and has 10 s"),
    ],
)
def test_a_scorer_that_cannot_be_had_is_bad_input(
    tmp_path: Path, arguments: tuple[str, tuple[str, ...]], error: str
) -> None:
    (tmp_path / "golden.jsonl").write_text(LINE)
    with pytest.raises(ConfigError) as caught:
        trial(arguments[0], tmp_path / "golden.jsonl", options=arguments[1], as_json=False)
    assert error in str(caught.value)


def sluice(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A real process, whose own modules stand in the folder."""
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def written(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "golden.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_C052_the_verdicts_of_math_are_those_of_its_golden_file(tmp_path: Path) -> None:
    golden = HERE / "math_golden.jsonl"
    done = sluice(tmp_path, "score", "test", "math", "--golden", str(golden))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    number = len(golden.read_text().splitlines())
    assert f"all {number} verdicts of math/" in done.stdout


def test_what_differs_is_a_table_and_exit_code_1(tmp_path: Path) -> None:
    """Beside an answer that hangs, one that ends its worker and one whose fault has a long text."""
    common = {"answer": "42", "completion": "good", "expected": True}
    written(
        tmp_path,
        *({**common, "id": f"right-{number}"} for number in range(4)),
        {**common, "id": "wrong", "expected": False},
        {**common, "id": "partly", "expected": 0.5},
        {**common, "id": 7, "completion": "hang"},
        {**common, "id": "end", "completion": "die"},
        {**common, "id": "x" * 200, "completion": "raise"},
    )
    arguments = ("strangers:obey", "--golden", "golden.jsonl", "--option", "timeout_seconds=0.5")
    done = sluice(tmp_path, "score", "test", *arguments)
    assert done.returncode == 1, done.stderr
    head, *rows = [line.split() for line in done.stdout.splitlines()]
    assert head == ["id", "expected", "got", "reason"]
    assert [row[:3] for row in rows] == [
        ["wrong", "false", "1"],
        ["partly", "0.5", "1"],
        ["7", "true", "fault"],
        ["end", "true", "fault"],
        ["x" * 59 + "…", "true", "fault"],
    ]
    assert [row[3:4] for row in rows] == [[], [], ["timeout"], ["crashed"], ["raised:"]]
    *trace, last = done.stderr.splitlines()
    assert trace[0].startswith("Traceback") and trace[-1].startswith("ValueError: a checker's own")
    assert last.startswith("sluice: golden.jsonl: 5 of 9 verdicts of strangers:obey/1@")


def test_every_verdict_is_a_line_of_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an async scorer too; its own outcome is what true and false speak of."""
    scaled = {"answer": None, "completion": "abcd", "prompt": "p", "task": "t", "finish": "length"}
    golden = written(
        tmp_path,
        {**scaled, "id": "a", "expected": True},
        {**scaled, "id": "b", "expected": 1.2},
        {**scaled, "id": "c", "expected": 1},
    )
    with pytest.raises(SluiceError, match="1 of 3 verdicts"):
        trial("strangers:Scaled", golden, options=["factor=0.3"], as_json=True)
    a, b, c = map(json.loads, capsys.readouterr().out.splitlines())
    assert a == {
        "id": "a",
        "expected": True,
        "as_expected": True,
        "reward": 1.2,
        "outcome": 1.0,
        "reason": "",
        "fault": None,
        "scorer": "strangers:Scaled",
        "version": "2.1",
        "hash": a["hash"],
    }
    assert (b["as_expected"], c["as_expected"], c["expected"]) == (True, False, 1.0)
    with pytest.raises(SluiceError):
        golden = written(tmp_path, {**scaled, "id": "a", "completion": "raise", "expected": False})
        trial("strangers:patient", golden, options=[], as_json=True)
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["reward"], line["fault"]) == (None, "raised: TimeoutError: somebody else's")


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "golden.jsonl").write_text(f"{LINE}\n{{\n")
    done = sluice(tmp_path, "score", "test", "exact", "--golden", "golden.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sluice: golden.jsonl, line 2: ")
    assert done.stderr.count("\n") == 1
