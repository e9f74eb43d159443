"""Evaluations while a run goes on: real inference, prompting's and training's parts by hand."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from planted_run import SCORER, TOKENS, Plant, Running, wait_until

from pipeline import grades
from pipeline.bus.evaluations import group_name
from pipeline.grades import Point
from pipeline.ledger import Sum
from pipeline.messages import Completion, Prompt, Sampling, Score, Span
from pipeline.watch import explain
from services.prompting.evaluation import HeldOut
from services.training.evaluations import Evaluations

Start = Callable[..., Running]
EXAMPLES, MEMBERS = 3, 2


def held_out(version: int, number: int) -> Prompt:
    is_greedy, place = divmod(number, EXAMPLES)
    return Prompt(
        group=group_name(version, number),
        seq=number,
        ids=array("i", [1, 2]).tobytes(),
        members=1 if is_greedy else MEMBERS,
        sampling=Sampling(max_tokens=TOKENS),
        lane="eval",
        pin=version,
        noise=f"sampled-{place}",
    )


class Course:
    """What prompting, scoring and training do of an evaluation, when they are asked to."""

    def __init__(self, plant: Plant, folder: Path) -> None:
        self.plant, self.folder = plant, folder
        (folder / "weights").mkdir(exist_ok=True)
        kept = [{"version": v, "step": v, "seconds": 1.5 + v, "path": ""} for v in (0, 2, 4)]
        lines = "".join(json.dumps(line) + "\n" for line in kept)
        (folder / "weights" / "kept.jsonl").write_text(lines)
        self.prompting, self.training = self.new_prompting(), self.new_training()
        self.seen: list[Completion] = []

    def new_prompting(self) -> HeldOut:
        return HeldOut(self.plant.bus, held_out, size=2 * EXAMPLES)

    def new_training(self) -> Evaluations:
        return Evaluations(self.plant.bus, self.folder, 1, every=2, members=MEMBERS)

    def begin(self) -> None:
        wait_until(lambda: self.admitted() == 2 * EXAMPLES)

    def admitted(self) -> int:
        self.prompting._look_at = 0.0
        self.prompting.admit()
        return self.plant.bus.snapshot().evaluation.cursor

    def score(self) -> None:
        """Whatever is delivered; the second member of each group is wrong."""
        leases = self.plant.bus.completions.draw(SCORER, held=[], count=1000)
        self.seen += [lease.work.completion for lease in leases]
        done = [(lease, Score(reward=1.0 - (lease.member or 0))) for lease in leases]
        self.plant.bus.completions.score(SCORER, done)

    def look(self) -> Point | None:
        self.score()
        return self.training.look(self.plant.bus.snapshot())

    def end(self) -> Point:
        found: list[Point] = []
        wait_until(lambda: found.extend(filter(None, [self.look()])) or found)
        return found[0]

    def answers(self) -> list[Completion]:
        return [c for c in self.seen if c.group.startswith("eval/")]


@pytest.fixture
def course(plant: Plant, tmp_path: Path) -> Course:
    return Course(plant, tmp_path)


def test_every_answer_is_of_the_pinned_version_while_the_run_goes_on(
    plant: Plant, start: Start, course: Course
) -> None:
    running = start(plant, steps=0, evaluate_every=4)
    wait_until(lambda: running.service.weights.serves(0))
    plant.admit(2)
    wait_until(lambda: plant.seen(running.life.boot).beat.pinned == 0)
    course.begin()
    wait_until(lambda: len(running.service.outbox.leases) == 2 + 2 * EXAMPLES)
    for version in (1, 2, 3, 4):
        running.engine.allow(4)
        plant.announce(version)
        wait_until(lambda v=version: running.engine.version == v)
    running.engine.allow(1000)
    point = course.end()
    boot = running.life.boot
    assert {c.spans for c in course.answers()} == {(Span(0, TOKENS, boot),)}
    assert len(course.answers()) == EXAMPLES * (MEMBERS + 1)
    mine = [c for c in course.seen if not c.group.startswith("eval/")]
    assert len(mine) == 4 and all(len(c.spans) > 1 for c in mine), "these moved on meanwhile"
    assert (point.version, point.sampled, point.greedy, point.boots) == (0, 0.5, 1.0, (boot,))
    assert point.pass_at == {1: 0.5, 2: 1.0} and point.seconds == 1.5
    assert plant.ledger() == {"generated": Sum(4, 4 * TOKENS)}, "the run's own, and no other"


def test_who_keeps_a_version_lets_it_go_once_its_evaluation_is_over(
    plant: Plant, start: Start, course: Course
) -> None:
    running = start(plant, evaluate_every=2)
    wait_until(lambda: plant.seen(running.life.boot).beat.pinned == 0)
    plant.announce(2)
    wait_until(lambda: running.engine.version == 2)
    assert running.service.lanes.pinned == 0, "one at a time"
    course.begin()
    assert course.end().version == 0
    wait_until(lambda: plant.seen(running.life.boot).beat.pinned == 2)
    course.begin()
    assert course.end().version == 2
    plant.announce(3)
    wait_until(lambda: plant.seen(running.life.boot).beat.pinned == -1)
    assert course.admitted() == 2 * EXAMPLES and course.look() is None, "not once more"
    assert [p.version for p in grades.read(course.folder).points] == [0, 2]


def test_a_version_is_offered_for_evaluation_once_it_is_proven(
    plant: Plant, start: Start, course: Course
) -> None:
    running = start(plant, evaluate_every=2)
    wait_until(lambda: plant.seen(running.life.boot).beat.pinned == 0)
    course.begin()
    course.end()
    running.engine.may_prove.clear()
    plant.announce(2)
    wait_until(lambda: running.service.lanes.pinned == 2)
    wait_until(lambda: running.life.waiting_for == "weights")
    assert running.life.pinned == -1
    running.engine.may_prove.set()
    wait_until(lambda: plant.seen(running.life.boot).beat.pinned == 2)


def test_a_server_that_lost_the_proof_of_a_kept_version_is_told_again(
    plant: Plant, start: Start, course: Course
) -> None:
    """It was put back, and what the engine serves by now was proven since."""
    running = start(plant, evaluate_every=4)
    wait_until(lambda: plant.seen(running.life.boot).beat.pinned == 0)
    plant.announce(1)
    wait_until(lambda: running.service.weights.serves(1))
    assert plant.bus._client.hdel(plant.keys.prefix + "proof:0", running.life.boot)
    course.begin()
    assert course.end().errors == 0


def test_another_engine_ends_what_a_killed_one_began(
    plant: Plant, start: Start, course: Course
) -> None:
    first = start(plant, "first", steps=0, evaluate_every=4)
    wait_until(lambda: plant.seen(first.life.boot).beat.pinned == 0)
    course.begin()
    wait_until(lambda: len(first.service.outbox.leases) == 2 * EXAMPLES)
    second = start(plant, "second", evaluate_every=4)
    dead = first.life.boot
    wait_until(lambda: plant.seen(second.life.boot).beat.pinned == 0)
    plant.announce(1)
    wait_until(lambda: {first.engine.version, second.engine.version} == {1})
    plant.bus.bury("first")
    course.prompting, course.training = course.new_prompting(), course.new_training()
    point = course.end()
    assert point.errors == 0 and point.boots == (second.life.boot,) and dead not in point.boots
    assert len(course.answers()) == EXAMPLES * (MEMBERS + 1), "each once"


def test_an_evaluation_whose_weights_are_gone_is_given_up_and_the_next_one_comes(
    plant: Plant, start: Start, course: Course
) -> None:
    only = start(plant, "only", steps=0, evaluate_every=4)
    wait_until(lambda: plant.seen(only.life.boot).beat.pinned == 0)
    course.begin()
    plant.announce(4)
    wait_until(lambda: only.engine.version == 4)
    dead = only.life.boot
    plant.bus.bury("only")
    wait_until(lambda: course.look() is None and _over(plant) and only.life.boot != dead)
    assert grades.read(course.folder).points == []
    only.engine.allow(10_000)
    wait_until(lambda: plant.seen(only.life.boot).beat.pinned == 4)
    course.begin()
    assert course.end().version == 4


def _over(plant: Plant) -> bool:
    return plant.bus.snapshot().evaluation.forgone == 1


def test_an_evaluation_that_stands_still_is_named(
    plant: Plant, start: Start, course: Course
) -> None:
    running = start(plant, steps=0, evaluate_every=4)
    wait_until(lambda: plant.seen(running.life.boot).beat.pinned == 0)
    course.begin()
    plant.bus._client.hset(plant.keys.prefix + "eval:state", "moved", "1")
    [said] = [s for s in explain(plant.bus.snapshot()) if "evaluation" in s]
    assert "the evaluation of version 0 has stood still for" in said
    assert "6 of 6 groups are to go, 6 of them in generation; engine keeps its weights" in said
