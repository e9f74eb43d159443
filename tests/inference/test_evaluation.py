"""`sluice evaluate`, with the demo's tokenizer and an engine that computes nothing."""

from __future__ import annotations

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from engines_for_tests import Noting
from msgspec.structs import replace

from pipeline import grades
from pipeline.config import load
from pipeline.errors import ConfigError, SluiceError
from pipeline.grades import KeptVersion, summary
from pipeline.messages import Sampling
from pipeline.run import Run
from services.inference.evaluation import evaluate, known_versions
from services.inference.grading import Grader

MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo" / "model"
KEPT = KeptVersion(version=3, step=2, seconds=1.5, path=str(MODEL))
LINE = {"prompt": "a5b3=2", "reference": {"right": "a5b3,a5b3"}, "task": "sort"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heldout.jsonl").write_text(2 * (json.dumps(LINE) + "\n"))
    return tmp_path


def run_of(folder: Path, scorer: str = "graders_for_tests:shown", data: str = "heldout") -> Run:
    path = folder / "run.toml"
    path.write_text(f"""
name = "graded"
steps = 1
model.path = "{MODEL}"
data = {{ use = "jsonl", path = "{data}.jsonl" }}
evaluation.data = {{ use = "jsonl", path = "{data}.jsonl" }}
evaluation.members = 3
sampling.max_tokens = 6
inference.engine = {{ use = "services.inference.engines.fake:build", vocabulary = 20 }}
scoring.scorers = ["{scorer}", "exact"]
scoring.timeout_seconds = 0.5
""")
    return load(path)


def keep(folder: Path, *versions: int) -> None:
    (folder / "runs" / "graded" / "weights").mkdir(parents=True)
    lines = [{"version": v, "step": v, "seconds": v, "path": str(MODEL)} for v in versions]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "runs" / "graded" / "weights" / "kept.jsonl").write_text(text)


@pytest.mark.slow
def test_every_kept_version_is_graded_with_answers_as_scoring_shows_them(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keep(folder, 0, 2)
    evaluate(run_of(folder))
    points = json.loads((folder / "runs" / "graded" / "evaluation.json").read_text())["points"]
    assert [point["version"] for point in points] == [0, 2]
    for point in points:
        assert (point["prompts"], point["members"], point["errors"]) == (2, 3, 0)
        assert 0 < point["sampled"] <= 1, "it ends by its length where no end token was drawn"
    assert capfd.readouterr().out.count("held-out sampled") == 2


def test_answers_are_sampled_as_in_training_but_for_the_greedy_one(folder: Path) -> None:
    run_of(folder)
    run = load(
        folder / "run.toml",
        [
            *("sampling.temperature=0.7", "sampling.top_p=0.9", "sampling.top_k=7"),
            *("sampling.min_p=0.01", "inference.engine=engines_for_tests:Noting"),
        ],
    )
    Grader(run).point(KEPT)
    own = Sampling(temperature=0.7, top_p=0.9, top_k=7, min_p=0.01, max_tokens=6)
    assert Noting.asked["sampled-0"] == own
    assert Noting.asked["greedy-0"] == replace(own, temperature=0.0)


def test_a_scorer_without_a_verdict_fails_the_evaluation_by_name(folder: Path) -> None:
    grader = Grader(run_of(folder, "graders_for_tests:by_text"))
    with pytest.raises(SluiceError, match="version 3: the scorer made no verdict"):
        grader.point(KEPT)


def test_an_example_that_cannot_be_used_costs_its_own_verdicts_alone(folder: Path) -> None:
    """As it does while the run goes on: the demo's tokenizer has no ids for the one, and the model
    no room for the other."""
    wrong = [{"prompt": text, "reference": ""} for text in ("äöü=2", "ab" * 300 + "=2")]
    lines = [LINE, wrong[0], LINE, wrong[1]]
    (folder / "heldout.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_of(folder)
    run = load(folder / "run.toml", ["inference.engine.max_length=256"])
    point = Grader(run).point(KEPT)
    assert (point.prompts, point.errors) == (4, 2 * (3 + 1))
    assert point.sampled > 0


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "has no kept weights"), ("", "has no kept weights"), ('{"version": 0', "cannot be")],
)
def test_what_is_not_kept_is_not_graded(folder: Path, text: str | None, told: str) -> None:
    if text is not None:
        (folder / "weights").mkdir()
        (folder / "weights" / "kept.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=told):
        known_versions(folder)


def test_what_was_graded_on_the_same_prompts_while_the_run_went_on_is_not_graded_again(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keep(folder, 3)
    run = run_of(folder)
    graded = summary(KEPT, [[1.0]], [[1.0]], members=1, boots=("e:1",), data=Grader(run).digest)
    grades.write(run.folder, [graded])
    evaluate(run)
    assert grades.read(run.folder).points == [graded]
    grades.write(run.folder, [replace(graded, data="another")])
    evaluate(run)
    [anew] = grades.read(run.folder).points
    assert (anew.boots, anew.data, anew.members) == ((), graded.data, 3)


def test_a_mistake_is_told_once_before_any_process_is_started(folder: Path) -> None:
    keep(folder, 0)
    with pytest.raises(ConfigError, match=r"gone\.jsonl"):
        evaluate(run_of(folder, data="gone"))


def point(sampled: list[list[Any]], greedy: list[list[Any]]) -> dict[str, Any]:
    made = summary(KEPT, sampled, greedy, members=2)
    return {name: getattr(made, name) for name in made.__struct_fields__}


def test_the_error_is_that_of_the_prompts_means() -> None:
    """Answers to one prompt are alike: 8 of them from 2 prompts are 2 samples and not 8."""
    made = point([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]], [[1.0], [0.0]])
    assert made["sampled"] == 0.5 and made["sampled_error"] == pytest.approx(0.5)
    assert made["zero_signal"] == 1.0 and made["pass_at"] == {1: 0.5, 2: 0.5}


def test_faults_are_left_out_of_every_mean_and_counted() -> None:
    made = point([[1.0, None], [0.0, 1.0], [None, None]], [[1.0], [None], [1.0]])
    assert made["sampled"] == 0.75 and made["greedy"] == 1.0
    assert made["pass_at"] == {1: 0.75, 2: 1.0} and made["zero_signal"] == 0.5
    assert made["errors"] == 4 and made["prompts"] == 3
    told = summary(KEPT, [[1.0, None]], [[1.0]], members=2).sentence()
    assert "answers without a verdict: 1)" in told and "±" not in told
    assert "verdict" not in summary(KEPT, [[1.0]], [[1.0]], members=1).sentence()


@pytest.mark.parametrize(("outcomes", "code"), [([1.0] + 7 * [0.0], 0), (8 * [0.0], 1)])
def test_the_gate_of_the_demo_lets_a_base_pass_that_knows_the_task_and_slips(
    outcomes: list[float], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `make demo` begins with; the grading itself is made up here."""
    spec = spec_from_file_location("gate", MODEL.parent / "gate.py")
    assert spec and spec.loader
    spec.loader.exec_module(gate := module_from_spec(spec))
    monkeypatch.setattr(gate, "load", lambda path: None)
    monkeypatch.setattr(
        gate, "grade_base", lambda run: summary(KEPT, [outcomes], [[1.0]], members=8)
    )
    assert gate.main() == code
