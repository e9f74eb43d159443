"""What training makes of evaluations: a line, a point, a checkpoint that stays; however it dies."""

from __future__ import annotations

import hashlib
import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from acts import Killed, Spy, Trip
from planted import ENGINE, SCORER, TOKENS, Lead, Stream, made_run, wait_until

from pipeline import grades
from pipeline.bus.bus import Bus
from pipeline.bus.connection import connect
from pipeline.bus.evaluations import group_name
from pipeline.bus.scripts import text_of
from pipeline.errors import ConfigError
from pipeline.messages import Beat, Completion, Manifest, Prompt, Sampling, Score, Span
from pipeline.run import Evaluation, Run
from pipeline.run import Training as Keys
from services.process import open_run
from services.training.checkpoints import found
from services.training.evaluations import Evaluations

SIZE, MEMBERS = 4, 2


class Course(Stream):
    """A stream whose engine keeps a version, and what prompting does of its evaluation."""

    pinned = -1

    def beat(self) -> None:
        super().beat()
        about = {"service": "inference", "instance": "inference-0", "boot": ENGINE}
        self.bus.beat(Beat(**about, pinned=self.pinned))

    def keep(self, version: int) -> None:
        self.pinned = version
        self.beat()

    def open(self, version: int) -> None:
        self.keep(version)
        prompts = [_prompt(version, n) for n in range(SIZE)]
        admit = self.bus.evaluations.admit
        assert admit(prompts, version=version, size=SIZE, first=0) == "ok"

    def answer(self, version: int, outcome: float) -> None:
        """The evaluation of a version, to its end."""
        taken = self.bus.prompts.take(
            ENGINE, version=self.version, held=self._held, count=0, pin=version, pinned_count=9
        )
        assert len(taken.leases) == SIZE
        for lease in taken.leases:
            done = [(lease, _answer(lease.group, m, version)) for m in lease.work.todo]
            assert set(self.bus.prompts.deliver(ENGINE, done)) == {"ok"}
        drawn = self.bus.completions.draw(SCORER, held=(), count=99)
        graded = [(lease, Score(reward=outcome)) for lease in drawn]
        assert set(self.bus.completions.score(SCORER, graded)) == {"ok"}


def _prompt(version: int, number: int) -> Prompt:
    return Prompt(
        group=group_name(version, number),
        seq=number,
        ids=struct.pack("<2i", 3, 4),
        members=MEMBERS if number < SIZE // 2 else 1,
        sampling=Sampling(),
        pin=version,
    )


def _answer(group: str, member: int, version: int) -> Completion:
    return Completion(
        group=group,
        member=member,
        ids=struct.pack(f"<{TOKENS}i", *range(5, 5 + TOKENS)),
        logprobs=struct.pack(f"<{TOKENS}f", *[-2.5] * TOKENS),
        spans=(Span(version, TOKENS, ENGINE),),
        engine=ENGINE,
        finish="stop",
    )


@pytest.fixture
def run(run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return made_run(
        run_name,
        steps=9,
        weights={"use": "shm", "folder": str(tmp_path)},
        training=Keys(checkpoint_every=1, checkpoints_kept=1),
        evaluation=Evaluation(data="jsonl", every=1, members=MEMBERS),
    )


@pytest.fixture
def course(server_url: str, run: Run) -> Iterator[Course]:
    course = Course(server_url, run)
    yield course
    course.bus.purge()
    course.bus.close()


@pytest.fixture
def alone(course: Course, run: Run) -> Evaluations:
    """A trainer's part, and a course whose engine serves version 0."""
    course.bus.groups.lead(1, "training-0:x")
    (run.folder / "weights").mkdir(parents=True)
    _announce(course, run, 0)
    return _part(course.bus, run)


def _part(bus: Bus, run: Run) -> Evaluations:
    return Evaluations(bus, run.folder, 1, every=2, members=MEMBERS)


def _announce(course: Course, run: Run, version: int) -> None:
    manifest = {"version": version, "step": version, "epoch": 1, "location": "here"}
    course.bus.versions.announce(Manifest(**manifest, fingerprint="f"), min_version=0)
    kept = {"version": version, "step": version, "seconds": 1.0 + version, "path": ""}
    with (run.folder / "weights" / "kept.jsonl").open("a") as file:
        file.write(json.dumps(kept) + "\n")
    course.serve(version)


class Dying(Spy):
    """Its process is killed before it sends this script."""

    def __init__(self, client: redis.Redis, script: str) -> None:
        super().__init__(client, self._look)
        self._text = text_of(script)

    def _look(self, commands: Trip) -> None:
        sha = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()
        if any(sha in map(str, command) for command in commands):
            raise Killed


def test_killed_between_the_file_and_the_word_it_notes_the_same_once_more(
    course: Course, run: Run, alone: Evaluations, server_url: str
) -> None:
    alone.expect(0)
    course.open(0)
    course.answer(0, 0.5)
    dying = _part(Bus(Dying(connect(server_url), "conclude"), run.name), run)
    with pytest.raises(Killed):
        dying.look(course.bus.snapshot())
    points = grades.read(run.folder).points
    assert len(points) == 1
    noted, follower = points[0], _part(course.bus, run)
    assert follower.due == {0} and follower.look(course.bus.snapshot()) == noted
    assert (noted.sampled, noted.step, noted.seconds, noted.boots) == (0.5, 0, 1.0, (ENGINE,))
    assert grades.read(run.folder).points == [noted] and follower.due == frozenset()
    assert course.bus.snapshot().evaluation.last == 0


def test_a_version_whose_weights_were_not_kept_has_no_point(
    course: Course, run: Run, alone: Evaluations, caplog: pytest.LogCaptureFixture
) -> None:
    """It could be the best, and nobody could have it."""
    (run.folder / "weights" / "kept.jsonl").unlink()
    alone.expect(0)
    course.open(0)
    course.answer(0, 1.0)
    assert alone.look(course.bus.snapshot()) is None
    assert "version=0 is of no use: its weights were not kept" in caplog.text
    assert course.bus.snapshot().evaluation.last == 0 and grades.read(run.folder).points == []


@pytest.mark.parametrize("why", ["silent", "quarantined", "keeps another"])
def test_an_evaluation_that_no_engine_can_end_is_forgone_by_name(
    course: Course, alone: Evaluations, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    alone.expect(0)
    course.open(0)
    assert alone.look(course.bus.snapshot()) is None and alone.due == {0}, "it can"
    if why == "silent":
        course.bus.bury("inference-0")
    elif why == "quarantined":
        course.bus.versions.quarantine(ENGINE, "two wrong flips")
    else:
        course.keep(2)
    assert alone.look(course.bus.snapshot()) is None
    assert "evaluation of version=0 is forgone: no engine has it" in caplog.text
    standing = course.bus.snapshot().evaluation
    assert (standing.last, standing.forgone, standing.alive) == (0, 1, 0)
    assert alone.due == frozenset()


def test_what_comes_while_another_is_evaluated_is_left_for_later_by_name(
    course: Course, run: Run, alone: Evaluations, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for version in range(9):
        if version:
            _announce(course, run, version)
        alone.expect(version)
        if version == 0:
            course.open(0)
        alone.look(course.bus.snapshot())
    assert alone.due == {0, 4, 6, 8}, "0 goes on, and engines may flip to the others yet"
    assert "version=2 is left for after the run" in caplog.text
    course.answer(0, 1.0)
    assert alone.look(course.bus.snapshot()) is not None
    course.open(8)
    course.answer(8, 1.0)
    assert alone.look(course.bus.snapshot()) is not None and alone.due == {4, 6}
    assert alone.look(course.bus.snapshot()) is None and alone.due == frozenset()
    told = [line for line in caplog.text.splitlines() if "left for after" in line]
    assert len(told) == 3 and [p.version for p in grades.read(run.folder).points] == [0, 8]


def test_another_held_out_set_is_refused_and_both_are_named(course: Course) -> None:
    first, other = {"evaluation.data": "abc"}, {"evaluation.data": "def"}
    open_run(course.bus, course.run, **first)
    assert course.bus.snapshot().evaluation.data == "abc"
    with pytest.raises(ConfigError, match=r"evaluation\.data = 'def': .* made with 'abc'"):
        open_run(course.bus, course.run, **other)
    open_run(course.bus, course.run), "it does not matter to who evaluates after the run"


def _step(course: Course) -> None:
    """The next one, by an engine that follows every version."""
    at = course.bus.state()
    course.serve(at.version)
    course.plant(2)
    wait_until(lambda: course.bus.state().version == at.version + 1, "version")


def _lines(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def _kept(run: Run) -> set[int]:
    return {one.version for one in found(run.folder)}


def test_the_best_checkpoint_stays_and_no_point_is_lost_whenever_the_trainer_dies(
    course: Course, run: Run, lead: Lead
) -> None:
    first = lead()
    course.serve(0)
    _step(course)
    course.serve(1)
    course.open(1)
    for _ in range(3):  # two turns and more go by, and the evaluation of version 1 goes on
        _step(course)
    wait_until(lambda: {1, 4} <= _kept(run), "checkpoint that waits for its score")
    course.answer(1, 1.0)
    wait_until(lambda: grades.read(run.folder).points, "point")
    first.stop()
    assert not any("held_out" in line for line in _lines(run)), "it ended before the next line"
    second = lead()
    wait_until(lambda: course.bus.state().version == 5, "first version")
    assert b"sluice_training_held_out_ratio" in second.exposition()
    _step(course)
    wait_until(lambda: len(_lines(run)) == 5, "line")
    told = [line["held_out"] for line in _lines(run) if "held_out" in line]
    assert [[point["version"] for point in points] for points in told] == [[1]]
    wait_until(lambda: max(_kept(run)) > 5, "checkpoint")
    assert 1 in _kept(run) and 1 not in second.service.checkpoints.awaited, "the best stays"
    wait_until(lambda: second.service.checkpoints.awaited.isdisjoint({2, 3}), "passing over")
    _step(course)
    wait_until(lambda: _kept(run).isdisjoint({0, 2, 3}), "end of those that were passed over")
    assert grades.read(run.folder).best == 1
    assert course.ledger()["trained"].members == 6 * 4 and course.balance() == (0, 0)
