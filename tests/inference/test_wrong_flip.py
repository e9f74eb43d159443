"""A flip that proves wrong is undone: nothing that it sampled leaves, and the engine goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from planted_run import TOKENS, Plant, Running, check, wait_until

from pipeline.ledger import Sum
from pipeline.messages import Span

Start = Callable[..., Running]


@pytest.mark.parametrize("more", [3, TOKENS - 5], ids=["running", "in_the_outbox"])
def test_after_a_wrong_flip_members_go_on_from_their_last_proven_token(
    plant: Plant, start: Start, more: int
) -> None:
    """The second attempt at the version is right, and its proof covers nothing of the first."""
    [prompt] = plant.admit()
    running = start(plant, steps=5)
    running.flown(10)
    running.engine.wrong_flips[1] = 1
    running.engine.may_prove.clear()
    plant.announce(1)
    wait_until(lambda: running.engine.version == 1)
    running.engine.allow(more)
    if more == TOKENS - 5:
        wait_until(lambda: len(running.service.outbox.waiting()) == 2)
    else:
        running.flown(10 + 2 * more)
    running.engine.may_prove.set()
    wait_until(lambda: running.total("wrong_flips") == 1)
    running.flown(10)
    boot = running.life.boot
    wait_until(lambda: running.service.weights.serves(1))
    running.engine.allow(2 * TOKENS)
    done = plant.await_delivered(2)
    assert {c.spans for c in done} == {(Span(0, 5, boot), Span(1, TOKENS - 5, boot))}
    check(prompt, done)
    assert plant.seen(boot).quarantined == ""
    wait_until(lambda: running.total("tokens") == 2 * TOKENS)
    assert running.total("lost_tokens") == 2 * more
    assert plant.ledger() == {"generated": Sum(2, 2 * TOKENS)}


def test_while_the_former_weights_serve_on_everybody_hears_why(plant: Plant, start: Start) -> None:
    running = start(plant)
    wait_until(lambda: running.service.weights.serves(0))
    running.service.weights._retry_seconds = 60.0
    running.engine.wrong_flips[1] = 1
    plant.announce(1)
    boot = running.life.boot
    wait_until(lambda: plant.seen(boot).rejected)
    assert "version 1 is not what was announced (live: other)" in plant.seen(boot).rejected
    [prompt] = plant.admit()
    done = plant.await_delivered(2)
    assert {c.spans for c in done} == {(Span(0, TOKENS, boot),)}
    check(prompt, done)
    plant.announce(2)
    wait_until(lambda: running.service.weights.serves(2))
    assert plant.seen(boot).rejected == ""


def test_after_the_second_wrong_flip_an_engine_is_quarantined_and_finishes_what_it_has(
    plant: Plant, start: Start
) -> None:
    [prompt] = plant.admit()
    running = start(plant, steps=5)
    running.flown(10)
    running.engine.wrong_flips |= {1: 1, 2: 1}
    plant.announce(1)
    wait_until(lambda: running.total("wrong_flips") == 1)
    plant.announce(2)
    boot = running.life.boot
    wait_until(lambda: plant.seen(boot).quarantined)
    assert plant.seen(boot).quarantined == (
        "2 flips went wrong, the last one: version 2 is not what was announced (live: other)"
    )
    running.engine.allow(TOKENS)
    done = plant.await_delivered(2)
    assert {c.spans for c in done} == {(Span(0, TOKENS, boot),)}
    check(prompt, done)
    plant.announce(3)
    plant.admit()
    wait_until(lambda: running.service.waiting_for == "the end of its quarantine")
    before = running.total("wall_seconds")
    wait_until(lambda: running.total("wall_seconds") > before + 0.1)
    assert running.engine.version == 0 and not running.service.outbox.leases
    assert running.error is None and running.thread.is_alive()


def test_a_quarantined_engine_that_was_declared_dead_stays_quarantined(
    plant: Plant, start: Start
) -> None:
    running = start(plant)
    wait_until(lambda: running.service.weights.serves(0))
    running.engine.wrong_flips[1] = 2
    plant.announce(1)
    former = running.life.boot
    wait_until(lambda: plant.seen(former).quarantined)
    plant.bus.bury("engine")
    wait_until(lambda: running.life.boot != former)
    wait_until(lambda: plant.seen(running.life.boot).quarantined)


def test_a_first_version_that_is_wrong_leaves_an_engine_that_takes_nothing(
    plant: Plant, start: Start
) -> None:
    plant.admit()
    running = start(plant, wrong={0: 2})
    boot = running.life.boot
    wait_until(lambda: plant.seen(boot).quarantined)
    assert running.engine.version == -1 and not running.service.outbox.leases
    assert plant.delivered() == [] and plant.ledger() == {}


def test_an_engine_that_leaves_before_it_heard_the_verdict_hands_back_what_was_proven(
    plant: Plant, start: Start
) -> None:
    [prompt] = plant.admit()
    first = start(plant, steps=5)
    first.flown(10)
    first.engine.wrong_flips[1] = 1
    first.engine.may_prove.clear()
    plant.announce(1)
    wait_until(lambda: first.engine.version == 1)
    first.engine.allow(3)
    first.flown(16)
    first.life.signal = "SIGTERM"
    first.engine.may_prove.set()
    first.join()
    assert plant.ledger() == {"generated": Sum(0, 10)}
    second = start(plant, "second")
    done = plant.await_delivered(2)
    spans = (Span(0, 5, first.life.boot), Span(1, TOKENS - 5, second.life.boot))
    assert {c.spans for c in done} == {spans}
    check(prompt, done)


def test_a_proven_version_that_is_no_longer_what_was_announced_ends_the_process(
    plant: Plant, start: Start
) -> None:
    """The server forgot the proof, and says another fingerprint now: there is no way back."""
    plant.admit()
    running = start(plant, steps=5)
    running.flown(10)
    wait_until(lambda: running.service.weights.serves(0))
    client, keys = plant.bus._client, plant.keys
    client.hset(keys.versions, "0|print", "another")
    client.delete(keys.proof(0))
    running.engine.allow(TOKENS)
    running.join()
    assert "version 0 was proven, and is no longer what was announced" in str(running.error)
    assert plant.delivered() == []
