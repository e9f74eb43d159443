"""The inference service whole, between a real server and an engine that can be held."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from planted_run import TOKENS, NoTransport, Plant, Running, alone, ids, manifest, wait_until

from pipeline.ledger import Sum
from pipeline.messages import Span
from services.inference.courier import Answer

Start = Callable[..., Running]


def test_every_prompt_comes_back_whole_with_the_span_of_who_sampled_it(
    plant: Plant, start: Start
) -> None:
    prompts = plant.admit(3)
    running = start(plant)
    done = plant.await_delivered(6)
    assert ids(done) == ids([c for prompt in prompts for c in alone(prompt)])
    assert {c.spans for c in done} == {(Span(0, TOKENS, running.life.boot),)}
    wait_until(lambda: running.total("members") == 6)
    assert running.total("tokens") == 6 * TOKENS and running.total("lost_tokens") == 0
    wait_until(lambda: running.metrics.gauges()["running_sequences"] == 0)


def test_nothing_is_delivered_before_the_proof_of_what_sampled_it(
    plant: Plant, start: Start
) -> None:
    plant.admit()
    running = start(plant, steps=5)
    running.flown(10)
    running.engine.may_prove.clear()
    plant.announce(1)
    wait_until(lambda: running.engine.version == 1)
    running.engine.allow(TOKENS)
    wait_until(lambda: len(running.service.outbox.waiting()) == 2)
    running.flown(0)
    assert plant.delivered() == [] and plant.ledger() == {}
    assert running.service.waiting_for == "weights"
    running.engine.may_prove.set()
    boot = running.life.boot
    spans = {c.spans for c in plant.await_delivered(2)}
    assert spans == {(Span(0, 5, boot), Span(1, TOKENS - 5, boot))}


def test_no_second_flip_comes_before_the_proof_of_the_first(plant: Plant, start: Start) -> None:
    running = start(plant)
    wait_until(lambda: running.service.weights.serves(0))
    running.engine.may_prove.clear()
    plant.announce(1)
    wait_until(lambda: running.engine.version == 1)
    plant.announce(2)
    running.engine.stage(manifest(2), NoTransport())  # as if it had been on its way
    before = running.total("wall_seconds")
    wait_until(lambda: running.total("wall_seconds") > before + 0.1)
    assert running.engine.version == 1
    running.engine.may_prove.set()
    wait_until(lambda: running.service.weights.serves(2))


def test_a_gated_engine_says_that_it_waits_for_fresher_weights(
    plant_run: Callable[..., Plant], start: Start
) -> None:
    plant = plant_run(lag_max=0, per_step=1)
    plant.admit(2)
    running = start(plant)
    plant.await_delivered(2)
    boot = running.life.boot
    wait_until(lambda: plant.seen(boot).beat.waiting_for == "fresher weights")
    fates = {"g0": {"trained": Sum(2, 2 * TOKENS)}}
    assert plant.bus.groups.commit(1, batch=1, changed=True, fates=fates) == "ok"
    plant.announce(1)
    assert {c.spans[0].version for c in plant.await_delivered(2)} == {1}
    wait_until(lambda: running.service.waiting_for == "prompts")


@pytest.mark.parametrize("reply", ["closed", "late"])
def test_what_is_left_of_a_group_is_dropped_at_the_first_answer_that_says_it_is_over(
    plant: Plant, start: Start, reply: str
) -> None:
    """To a prefix, or to a member; here it is open on the bus, so that no beat can say so."""
    plant.admit(2)
    running = start(plant, steps=0)
    courier, outbox = running.service.courier, running.service.outbox
    wait_until(lambda: len(outbox.leases) == 2)
    running.engine.allow(5)
    running.flown(20)
    [first, *_] = running.engine.prefixes()
    with courier._changed:
        courier._answers.append(Answer(outbox.leases[first.group], first, reply))
    running.flown(10)
    assert first.group not in outbox.leases and running.total("lost_tokens") == 10


def test_what_is_handed_back_goes_on_elsewhere_with_the_same_ids(
    plant: Plant, start: Start
) -> None:
    [prompt] = plant.admit()
    first = start(plant, steps=5)
    first.flown(10)
    first.leave()
    assert plant.ledger() == {"generated": Sum(0, 10)}
    assert (first.total("tokens"), first.total("lost_tokens")) == (10, 0)
    second = start(plant, "second")
    done = plant.await_delivered(2)
    assert ids(done) == ids(alone(prompt))
    spans = (Span(0, 5, first.life.boot), Span(0, TOKENS - 5, second.life.boot))
    assert {c.spans for c in done} == {spans}
    wait_until(lambda: second.total("tokens") == 2 * (TOKENS - 5))
    assert plant.ledger()["generated"] == Sum(2, 2 * TOKENS)
    assert plant.is_balanced()


def test_a_prefix_is_handed_back_up_to_its_last_proven_token(plant: Plant, start: Start) -> None:
    [prompt] = plant.admit()
    first = start(plant, steps=5)
    first.flown(10)
    first.engine.may_prove.clear()
    plant.announce(1)
    wait_until(lambda: first.engine.version == 1)
    first.engine.allow(3)
    first.flown(16)
    first.leave(may_prove=False)
    assert plant.ledger() == {"generated": Sum(0, 10)}
    assert (first.total("tokens"), first.total("lost_tokens")) == (10, 6)
    second = start(plant, "second")
    done = plant.await_delivered(2)
    spans = (Span(0, 5, first.life.boot), Span(1, TOKENS - 5, second.life.boot))
    assert {c.spans for c in done} == {spans}
    whole = ids(alone(prompt))
    assert all(tokens[:5] == whole[key][:5] for key, tokens in ids(done).items())
    assert plant.is_balanced()


def test_what_waits_for_its_proof_at_the_end_is_handed_back_as_a_prefix(
    plant: Plant, start: Start
) -> None:
    plant.admit()
    first = start(plant, steps=5)
    first.flown(10)
    first.engine.may_prove.clear()
    plant.announce(1)
    wait_until(lambda: first.engine.version == 1)
    first.engine.allow(TOKENS)
    wait_until(lambda: len(first.service.outbox.waiting()) == 2)
    first.leave(may_prove=False)
    assert plant.ledger() == {"generated": Sum(0, 10)}
    start(plant, "second")
    assert {c.spans[0].tokens for c in plant.await_delivered(2)} == {5}


def test_leaving_waits_for_a_proof_that_is_on_its_way(plant: Plant, start: Start) -> None:
    plant.admit()
    running = start(plant, steps=5)
    running.flown(10)
    running.engine.may_prove.clear()
    plant.announce(1)
    wait_until(lambda: running.engine.version == 1)
    running.engine.allow(3)
    running.flown(16)
    running.life.signal = "SIGTERM"
    wait_until(lambda: running.life.waiting_for == "hand back")
    changed = running.service.weights._changed
    with changed:
        changed.notify_all()  # something else happened
    running.join(seconds=0.2, ends=False)
    running.engine.may_prove.set()
    running.join()
    assert plant.ledger() == {"generated": Sum(0, 16)}


def test_who_was_declared_dead_starts_over_and_delivers_nothing_twice(
    plant: Plant, start: Start
) -> None:
    [first] = plant.admit()
    running = start(plant, steps=TOKENS)
    plant.await_delivered(2)
    [second] = plant.admit()
    running.engine.allow(5)
    running.flown(10)
    former = running.life.boot
    plant.bus.bury("engine")
    running.engine.allow(3 * TOKENS)
    done = plant.await_delivered(4)
    assert ids(done) == ids([*alone(first), *alone(second)])
    assert {c.spans[0].boot for c in done} == {former, running.life.boot}
    assert former != running.life.boot
    assert plant.ledger() == {"generated": Sum(4, 4 * TOKENS)}
    wait_until(lambda: running.total("tokens") == 4 * TOKENS)
    assert running.total("lost_tokens") >= 10
    assert plant.is_balanced()


def test_who_was_declared_dead_leaves_quietly(plant: Plant, start: Start) -> None:
    plant.admit()
    running = start(plant, steps=5)
    running.flown(10)
    plant.bus.bury("engine")
    running.leave()
    assert plant.ledger() == {} and running.total("lost_tokens") == 10


def test_a_group_that_was_closed_elsewhere_is_dropped(plant: Plant, start: Start) -> None:
    plant.admit()
    running = start(plant, steps=5)
    running.flown(10)
    plant.bus.groups.refuse(1, "g0", {})
    wait_until(lambda: not running.engine.busy)
    assert running.total("lost_tokens") == 10 and not running.service.outbox.leases


def test_a_member_that_comes_late_is_no_token_of_use(plant: Plant, start: Start) -> None:
    plant.admit()
    running = start(plant, steps=5)
    running.flown(10)
    plant.bus.groups.refuse(1, "g0", {})
    running.engine.allow(TOKENS)
    wait_until(lambda: running.total("lost_tokens") == 2 * TOKENS)
    assert running.total("members") == running.total("tokens") == 0
    assert plant.ledger() == {"generated": Sum(2, 2 * TOKENS), "late": Sum(2, 2 * TOKENS)}


def test_a_group_that_cannot_be_attempted_is_dead_lettered_with_the_reason(
    plant: Plant, start: Start
) -> None:
    plant.admit(ids=(1, 99))
    plant.admit()
    running = start(plant)
    plant.await_delivered(2)
    [reason] = plant.letters()
    assert reason == b"token_unknown: group g0 has ids in 1..99, the model knows 0..31"
    assert running.error is None and running.thread.is_alive()


def test_a_member_too_large_to_be_sent_fails_and_the_engine_goes_on(
    plant: Plant, start: Start
) -> None:
    running = start(plant, steps=0)
    running.engine.large_members.add(0)
    plant.admit(2)
    running.engine.allow(3 * TOKENS)
    assert {c.member for c in plant.await_delivered(2)} == {1}
    wait_until(lambda: len(plant.letters()) == 2)
    assert all(b"too_large: member 0 of group" in reason for reason in plant.letters())
    wait_until(lambda: running.total("members") == 2)
    wait_until(lambda: running.total("lost_tokens") == 2 * TOKENS)
    assert running.error is None and running.thread.is_alive()


def test_a_version_that_cannot_be_staged_leaves_the_old_one_serving_and_is_tried_again(
    plant: Plant, start: Start
) -> None:
    running = start(plant)
    wait_until(lambda: running.service.weights.serves(0))
    running.engine.failing[1] = 2
    plant.announce(1)
    boot = running.life.boot
    wait_until(lambda: plant.seen(boot).rejected)
    assert plant.seen(boot).rejected == "version 1: version 1 not staged: a checksum is off"
    plant.admit()
    assert {c.spans for c in plant.await_delivered(2)} == {(Span(0, TOKENS, boot),)}
    wait_until(lambda: running.service.weights.serves(1))
    assert plant.seen(boot).rejected == "" and running.total("staging_errors") == 2


@pytest.mark.parametrize("idle", [False, True])
def test_a_proof_that_the_server_lost_is_given_again(
    plant: Plant, start: Start, idle: bool
) -> None:
    """Of all versions that stand in what is to be delivered, not only of the one that runs."""
    running = start(plant, steps=0)
    if not idle:
        plant.admit()
        running.engine.allow(5)
        running.flown(10)
        plant.announce(1)
        wait_until(lambda: running.service.weights.serves(1))
    else:
        wait_until(lambda: running.service.weights.serves(0))
    plant.bus._client.delete(plant.keys.proof(0), plant.keys.proof(1))
    if idle:
        plant.admit()
    running.engine.allow(TOKENS)
    plant.await_delivered(2)


def test_a_member_whose_prefix_nobody_can_prove_fails_and_holds_nobody_up(
    plant: Plant, start: Start
) -> None:
    plant.admit()
    first = start(plant, steps=5)
    first.flown(10)
    first.leave()
    second = start(plant, "second", steps=2)
    second.flown(14)
    plant.bus._client.hdel(plant.keys.proof(0), first.life.boot)
    second.engine.allow(TOKENS)
    wait_until(lambda: len(plant.letters()) == 2)
    assert all(reason.startswith(b"unproven: ") for reason in plant.letters())
    assert not second.service.outbox.waiting() and plant.is_balanced()
