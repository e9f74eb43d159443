"""Finished members between the engine and the bus, and those that are taken back on the way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engines_for_tests import Paced
from planted_run import TOKENS, NoTransport, Plant, manifest, wait_until

from pipeline.bus.bus import Bus
from pipeline.bus.leases import Lease
from pipeline.ledger import Sum
from pipeline.life import Life
from pipeline.messages import Beat, Completion, Prompt, Sampling, Span, Work
from pipeline.metrics import Metrics
from services.inference.metrics import Numbers
from services.inference.outbox import Outbox
from services.inference.prefixes import CHUNK_TOKENS
from services.inference.service import Inference


class Watched(Paced):
    """Notes whether anything was under way when its work was taken from it."""

    service: Inference
    away_at_park: bool | None = None

    def park(self) -> list[Completion]:
        if self.away_at_park is None:
            self.away_at_park = self.service.courier.away
        return super().park()


@pytest.fixture
def service(plant: Plant) -> Iterator[Inference]:
    """At proven version 0, its loop driven by the test; its courier has not begun to carry."""
    bus, metrics = Bus.connect(plant.url, plant.run), Metrics("inference")
    life = Life(bus, "inference", "engine", metrics=metrics)
    bus.beat(Beat(service="inference", instance="engine", boot=life.boot))
    engine = Watched(boot=life.boot)
    service = Inference(bus, engine, NoTransport(), life=life, numbers=Numbers(metrics))
    engine.service = service
    engine.stage(manifest(0), NoTransport())
    engine.flip()
    service.weights.start()
    service.weights.confirm(0)
    wait_until(lambda: service.weights.serves(0))
    yield service
    service.weights.close()
    bus.close()


def take(service: Inference) -> Lease[Work]:
    [lease] = service.bus.prompts.take(service.life.boot, version=0, held=[], count=1).leases
    service.accept(lease)
    return lease


def test_what_is_proven_in_part_stays_until_all_of_it_is() -> None:
    proven = {0}
    outbox = Outbox(lambda span: span.version in proven)
    prompt = Prompt(group="g", seq=0, ids=b"", members=2, sampling=Sampling())
    outbox.expect(lease := Lease("1-0", "g", Work(prompt=prompt, todo=(0, 1))))
    old, mixed = (
        Completion(group="g", member=m, ids=b"\0" * 8, logprobs=b"\0" * 8, spans=spans)
        for m, spans in enumerate(((Span(0, 2, "b"),), (Span(0, 1, "b"), Span(1, 1, "b"))))
    )
    outbox.put(old)
    outbox.put(mixed)
    assert outbox.leaving() == [(lease, old)]
    proven.add(1)
    assert outbox.leaving() == [(lease, mixed)]


def test_what_was_taken_back_leaves_again_and_its_first_denial_is_a_first_one() -> None:
    proven = {0}
    outbox = Outbox(lambda span: span.version in proven)
    prompt = Prompt(group="g", seq=0, ids=b"", members=1, sampling=Sampling())
    outbox.expect(lease := Lease("1-0", "g", Work(prompt=prompt, todo=(0,))))
    first, again = (
        Completion(group="g", member=0, ids=b"\0" * 4, logprobs=b"\0" * 4, spans=(Span(0, 1, "b"),))
        for _ in range(2)
    )
    outbox.put(first)
    assert outbox.leaving() == [(lease, first)] and outbox.is_first_denial(first)
    assert outbox.leaving() == [(lease, first)]
    proven.clear()
    assert outbox.take_back() == [first] and not outbox.has(first)
    outbox.put(again)
    proven.add(0)
    assert outbox.has(again) and not outbox.has(first)
    assert outbox.leaving() == [(lease, again)] and outbox.is_first_denial(again)


def test_a_late_answer_about_an_attempt_that_was_taken_back_is_not_the_next_one_s(
    plant: Plant, service: Inference
) -> None:
    """Its proof is in doubt while it is on its way, and a wrong flip is undone just then."""
    plant.admit()
    lease = take(service)
    service.deliver([done for _ in range(TOKENS) for done in service.engine.step()])
    assert service.courier.away and not service.engine.busy
    service.weights.close()  # so that the doubt lasts
    service.weights.doubt([Span(0, TOKENS, service.life.boot)])
    service.engine.stage(manifest(1), NoTransport())
    service.engine.flip()
    service.revert("a wrong flip")
    service.courier.start()
    service.courier.wait(20)
    service.hear_all()
    assert len(plant.delivered()) == 2 and service.outbox.leases == {lease.group: lease}
    assert service.engine.busy and service.life._metrics.totals()["members"] == 0
    service.courier.close()


def test_nothing_is_under_way_when_what_is_running_is_handed_over(
    plant: Plant, service: Inference
) -> None:
    """A chunk falls due in the second round of the last deliveries."""
    plant.admit(tokens=2 * CHUNK_TOKENS)
    take(service)
    service.courier.start()
    for _ in range(CHUNK_TOKENS - 2):
        service.deliver(service.engine.step())
    service.hand_back()
    assert isinstance(service.engine, Watched) and service.engine.away_at_park is False
    assert plant.ledger() == {"generated": Sum(0, 2 * (CHUNK_TOKENS - 2))}
