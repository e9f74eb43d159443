"""A trainer that lost steps takes versions back: whoever runs one goes on to the next."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from planted_run import TOKENS, Plant, Running, manifest, wait_until

from pipeline.messages import Span

Start = Callable[..., Running]


@pytest.fixture
def plant(plant: Plant) -> Plant:
    """At step 2, with version 1 of step 1 as the newest."""
    for batch in (1, 2):
        assert plant.bus.groups.commit(1, batch=batch, changed=True, fates={}) == "ok"
    plant.announce(1)
    return plant


def go_on(plant: Plant) -> None:
    """The trainer's first version after it went back to step 1."""
    plant.bus.versions.announce(replace(manifest(3), step=1), min_version=3)


def test_an_engine_delivers_what_a_lost_version_sampled_and_takes_under_the_next(
    plant: Plant, start: Start
) -> None:
    plant.announce(2)
    plant.admit()
    running = start(plant, steps=5)
    running.flown(10)
    plant.bus.groups.rollback(1, 1)
    plant.admit()
    wait_until(lambda: running.service.gate == "unproven")
    wait_until(lambda: not running.service.weights.serves(2))
    running.engine.allow(4 * TOKENS)
    boot = running.life.boot
    assert {c.spans for c in plant.await_delivered(2)} == {(Span(2, TOKENS, boot),)}
    assert running.service.waiting_for == "weights"
    go_on(plant)
    later = [c for c in plant.await_delivered(4) if c.group == "g1"]
    assert {c.spans for c in later} == {(Span(3, TOKENS, boot),)}
    assert plant.letters() == [] and running.error is None and running.thread.is_alive()
    wait_until(lambda: running.total("tokens") == 4 * TOKENS)
    assert running.total("lost_tokens") == 0 and plant.is_balanced()


def test_a_flip_to_a_version_that_was_lost_meanwhile_is_undone_and_held_against_nobody(
    plant: Plant, start: Start
) -> None:
    plant.admit()
    running = start(plant, steps=5)
    running.flown(10)
    weights = running.service.weights
    weights._retry_seconds = 0.001  # if it were offered again, it would be at once
    running.engine.may_prove.clear()
    plant.announce(2)
    wait_until(lambda: running.engine.version == 2)
    running.engine.allow(3)
    running.flown(16)
    plant.bus.groups.rollback(1, 1)
    running.engine.may_prove.set()
    wait_until(lambda: running.total("wrong_flips") == 1)
    running.flown(10)
    running.engine.allow(3)
    running.flown(16)
    before = running.total("wall_seconds")
    wait_until(lambda: running.total("wall_seconds") > before + 0.1)
    assert running.engine.version == 1 and weights.serves(1)
    go_on(plant)
    wait_until(lambda: weights.serves(3))
    running.engine.allow(2 * TOKENS)
    boot = running.life.boot
    spans = (Span(1, 8, boot), Span(3, TOKENS - 8, boot))
    assert {c.spans for c in plant.await_delivered(2)} == {spans}
    assert running.total("wrong_flips") == 1 and plant.seen(boot).quarantined == ""
    wait_until(lambda: running.total("tokens") == 2 * TOKENS)
    assert running.total("lost_tokens") == 6


def test_a_server_that_was_put_back_to_before_what_an_engine_serves_is_waited_for(
    plant: Plant, start: Start
) -> None:
    """The trainer is in the middle of a step, and tells it again later."""
    plant.announce(2)
    running = start(plant, steps=5)
    weights, prefix = running.service.weights, plant.keys.prefix
    wait_until(lambda: weights.serves(2))
    client = plant.bus._client
    client.hset(prefix + "state", "version", "1")
    client.hdel(prefix + "ver", "2|step", "2|print")
    client.delete(prefix + "proof:2")
    plant.admit()
    wait_until(lambda: running.service.gate == "unproven" and not weights.serves(2))
    wait_until(lambda: running.life.waiting_for == "weights")
    plant.announce(2)
    running.engine.allow(2 * TOKENS)
    assert {c.spans[0].version for c in plant.await_delivered(2)} == {2}
    assert running.error is None and running.thread.is_alive()


def test_a_lost_version_that_was_kept_for_its_evaluation_makes_room_for_a_later_one(
    plant: Plant, start: Start
) -> None:
    plant.announce(2)
    running = start(plant, evaluate_every=2)
    wait_until(lambda: plant.seen(running.life.boot).beat.pinned == 2)
    plant.bus.groups.rollback(1, 1)
    plant.admit()
    wait_until(lambda: running.service.lanes.pinned == -1)
    plant.bus.versions.announce(replace(manifest(4), step=1), min_version=3)
    wait_until(lambda: plant.seen(running.life.boot).beat.pinned == 4)
    assert running.error is None


def test_an_engine_that_starts_over_under_a_lost_version_waits_for_the_next(
    plant: Plant, start: Start
) -> None:
    plant.announce(2)
    running = start(plant)
    wait_until(lambda: running.service.weights.serves(2))
    plant.bus.groups.rollback(1, 1)
    former = running.life.boot
    plant.bus.bury("engine")
    wait_until(lambda: running.life.boot != former)
    plant.admit()
    wait_until(lambda: not running.service.weights.pending)
    assert running.service.waiting_for == "weights"
    go_on(plant)
    assert {c.spans[0].version for c in plant.await_delivered(2)} == {3}
    assert running.error is None and running.total("wrong_flips") == 0


def test_after_a_lost_version_the_next_is_examined_as_often_as_any(
    plant: Plant, start: Start
) -> None:
    """What is held against the next one is no fault of the version before it."""
    plant.announce(2)
    running = start(plant, canary_gap=0.1)
    weights = running.service.weights
    wait_until(lambda: weights.serves(2))
    plant.bus.groups.rollback(1, 1)
    plant.admit()
    wait_until(lambda: weights.is_forgotten(2))
    running.engine.off_once[3] = 0.5
    go_on(plant)
    assert {c.spans[0].version for c in plant.await_delivered(2)} == {3}
    assert running.total("wrong_flips") == 1
