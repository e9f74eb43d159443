"""`sluice score rescore`: what a run recorded, judged again, and what would change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from planting import ids_of
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from pipeline.config import dump
from pipeline.errors import ConfigError, SluiceError
from pipeline.messages import Completion, Group, Member, Prompt, Sampling, Score
from pipeline.run import Model, Run
from services.scoring.rescore import Steps, rescore
from services.training.cargo import Cargo
from services.training.records import Record, Records

WORDS = {"right": 1, "wrong": 2, "hang": 3, "die": 4, "other": 5}
Told = tuple[str, Score | None]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Of a model whose ids are the words, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    tokenizer = Tokenizer(WordLevel(WORDS))
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    run = Run(name="run", steps=9, data="none", model=Model(path="model"))
    run.folder.mkdir(parents=True)
    (run.folder / "run.toml").write_text(dump(run))
    return run


def score(reward: float | None, name: str = "exact", **more: Any) -> Score:
    return Score(reward=reward, scorer=f"{name}/1@0", parts={f"{name}/1@0": reward or 0.0}, **more)


def group(name: str, told: Sequence[Told], *, task: str = "", reference: object = "right") -> Group:
    """A member a word, and how it was scored."""
    members = {
        number: Member(
            completion=Completion(
                group=name, member=number, ids=ids_of(chr(WORDS[word])), logprobs=b"", spans=()
            ),
            score=score,
        )
        for number, (word, score) in enumerate(told)
    }
    raw = reference if isinstance(reference, bytes) else msgspec.json.encode(reference)
    prompt = Prompt(
        group=name, seq=0, ids=ids_of("\1"), members=len(told), sampling=Sampling(),
        task=task, reference=raw,
    )  # fmt: skip
    return Group(prompt=prompt, start_step=0, members=members)


def record(run: Run, batch: int, *groups: Group, epoch: int = 1, whole: bool = True) -> Path:
    """As a trainer of two ranks writes them; the path of the plan."""
    records = Records(run.folder)
    plan = Record(batch=batch, epoch=epoch, step=0, version=0, steps={}, groups=(), fates={})
    stem, places = records.begin(plan), {}
    for rank, mine in enumerate((groups[::2], groups[1::2])):
        whole_groups = {one.prompt.group: one for one in mine}
        cargo = Cargo(lambda names, of=whole_groups: [of[n] for n in names], vocabulary=9)
        cargo.read([*whole_groups])
        places |= cargo.write(stem, [*whole_groups], rank)
    records.write(replace(plan, places=places), whole=whole)
    return Path(stem)


def compared(
    capsys: pytest.CaptureFixture[str], run: Run, scorer: str = "exact", *options: str
) -> dict[str, Any]:
    rescore(run, scorer, options=options, as_json=True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_would_change_is_counted_by_member_group_and_task(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    yes, no = score(1.0), score(0.0)
    record(
        run, 1,
        group("a", [("right", yes), ("wrong", yes), ("wrong", no), ("right", no)], task="t"),
        group("b", [("right", yes), ("wrong", no)], task="u"),
    )  # fmt: skip
    record(run, 2, group("c", [("wrong", score(0.25)), ("wrong", no), ("right", yes)], task="u"))
    found = compared(capsys, run)
    assert found["scorer"].startswith("exact/1@") and found["was"] == ["exact/1@0"]
    assert (found["steps"], found["unrecorded"], found["unscored"]) == (2, 0, 0)
    assert found["all"] == {
        "completions": 9,
        "old_mean": pytest.approx(4.25 / 9),
        "new_mean": pytest.approx(4 / 9),
        "old_right": 5,
        "new_right": 4,
        "right_to_wrong": 2,
        "wrong_to_right": 1,
        "changed": 3,
    }
    by_task = {name: (t["completions"], t["changed"]) for name, t in found["tasks"].items()}
    assert by_task == {"t": (4, 2), "u": (5, 1)}
    assert found["signs"] == 2, "in c the mean moves, and everybody keeps their side"
    largest = [(one["group"], one["member"], one["old"], one["new"]) for one in found["largest"]]
    assert sorted(largest[:2]) == [("a", 1, 1.0, 0.0), ("a", 3, 0.0, 1.0)]
    assert largest[2:] == [("c", 0, 0.25, 0.0)]


def test_members_without_a_reward_then_or_a_verdict_now_are_told_and_not_compared(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    yes, fault = score(1.0), Score(reward=None, error="timeout")
    told = [("hang", yes), ("die", yes), ("right", fault), ("right", None), ("right", yes)]
    record(run, 1, group("a", told), group("b", [("right", yes)], reference=b"{"))
    found = compared(capsys, run, "strangers:obey", "timeout_seconds=0.5")
    assert (found["all"]["completions"], found["unscored"]) == (1, 2)
    assert found["faults"] == {"timeout": 1, "crashed": 1, "raised": 1}
    listed = [(one["group"], one["member"], one["fault"].split(":")[0]) for one in found["faulted"]]
    assert listed == [("a", 0, "timeout"), ("a", 1, "crashed"), ("b", 0, "raised")]


def test_a_scorer_without_any_verdict_is_a_failure(run: Run) -> None:
    record(run, 1, group("a", [("die", score(1.0)), ("die", score(0.0))]))
    with pytest.raises(SluiceError, match="has a verdict on no completion, mostly crashed"):
        rescore(run, "strangers:obey", options=(), as_json=False)


def test_a_scorer_that_the_run_has_is_compared_with_its_own_part(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its outcome with the run's where that is its own."""
    parts = {"exact/1@0": 0.25, "regex/1@1": 0.5}
    mixed = Score(reward=0.75, outcome=0.0, scorer="both", parts=parts, shadow={"http/1@2": 0.0})
    record(run, 1, group("a", [("right", mixed)]))
    own = compared(capsys, run)["all"]
    assert (own["old_mean"], own["new_mean"], own["wrong_to_right"]) == (0.25, 1.0, 1)
    other = compared(capsys, run, "regex", "pattern=nothing")["all"]
    assert (other["old_mean"], other["new_mean"], other["right_to_wrong"]) == (0.5, 0.0, 1)
    strange = compared(capsys, run, "strangers:patient")["all"]
    assert (strange["old_mean"], strange["new_mean"]) == (0.75, 1.0)


def test_of_a_batch_that_was_planned_twice_the_later_counts(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    record(run, 1, group("a", [("wrong", score(1.0))]))
    record(run, 1, group("b", [("right", score(1.0))] * 2), epoch=2)
    assert compared(capsys, run)["all"]["completions"] == 2


def test_what_a_trainer_makes_anew_or_forgets_meanwhile_is_read_as_it_is_then(run: Run) -> None:
    for batch, name in ((1, "a"), (2, "b"), (3, "c")):
        record(run, batch, group(name, [("right", score(1.0))]))
    groups = Steps(run.folder / "steps").groups()
    assert next(groups).name == "a"
    records = Records(run.folder)
    record(run, 2, group("d", [("right", score(1.0))]), epoch=2)
    records.forget(2)
    records.sweep()
    assert [one.name for one in groups] == ["d"]


def test_steps_that_were_not_recorded_are_told(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    record(run, 1, group("a", [("right", score(1.0))]), whole=False)
    with pytest.raises(ConfigError, match=r'recorded \(training.record = "off"\)'):
        rescore(run, "exact", options=[], as_json=False)
    record(run, 2, group("b", [("right", score(1.0))]))
    found = compared(capsys, run)
    assert (found["steps"], found["unrecorded"]) == (1, 1)


def test_a_run_without_a_step_and_a_damaged_record_are_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="there is no step record"):
        rescore(run, "exact", options=[], as_json=False)
    stem = record(run, 1, group("a", [("right", score(1.0))]))
    cargo = Path(f"{stem}.r0")
    cargo.write_bytes(cargo.read_bytes()[:-1] + b"x")
    with pytest.raises(SluiceError, match="is damaged"):
        rescore(run, "exact", options=[], as_json=False)


def test_a_process_says_it_in_lines_and_changes_nothing(run: Run, tmp_path: Path) -> None:
    told = [("right", score(1.0)), ("wrong", score(1.0)), ("other", None)]
    record(run, 1, group("a", told, task="sums"), group("b", told))
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "score", "rescore", "run", "--with", "exact"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    first, old, new, unscored, head, *rest = done.stdout.splitlines()
    assert first == "run: 4 completions of 1 step"
    assert (old, new.partition("@")[0]) == ("old: exact/1@0", "new: exact/1")
    assert unscored == "completions that had no reward: 2"
    assert head.split()[:3] == ["task", "number", "mean"]
    assert [line.split() for line in rest[:3]] == [
        ["all", "4", "1.0000", "0.5000", "4", "2", "2", "0"],
        ["(none)", "2", "1.0000", "0.5000", "2", "1", "1", "0"],
        ["sums", "2", "1.0000", "0.5000", "2", "1", "1", "0"],
    ]
    assert rest[3:] == [
        "rewards that differ: 2",
        "advantages whose sign may differ: 4",
        "  group a member 1: 1 -> 0",
        "  group b member 1: 1 -> 0",
    ]
    assert before == {path: path.read_bytes() for path in before}
    assert {*before} == {path for path in run.folder.rglob("*") if path.is_file()}
