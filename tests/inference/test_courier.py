"""What is left for the courier arrives, and comes back to whoever left it; against a real desk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from engines_for_tests import Paced
from planted_run import TOKENS, NoTransport, Plant, manifest, wait_until

from pipeline.bus.bus import Bus
from pipeline.bus.chunks import head
from pipeline.bus.leases import Lease, Taken
from pipeline.errors import Gone
from pipeline.ledger import Sum
from pipeline.life import Life
from pipeline.messages import Beat, Completion, Work
from pipeline.metrics import Metrics
from services.inference.courier import Courier, Request
from services.inference.metrics import Numbers
from services.inference.service import Inference

BOOT = "engine:1"
REQUEST = Request(version=0, held=(), room=1)


class Desk(NamedTuple):
    """A proven boot, and a courier to its desk."""

    bus: Bus
    courier: Courier

    def ask(self, held: tuple[str, ...] = ()) -> Lease[Work]:
        """The one group that is there."""
        found: list[Taken] = []
        self.courier.leave(BOOT, request=REQUEST._replace(held=held))
        wait_until(lambda: found or found.extend(t for t in [self.courier.taken()] if t) or found)
        return found[0].leases[0]


@pytest.fixture
def desk(plant: Plant) -> Iterator[Desk]:
    bus = Bus.connect(plant.url, plant.run)
    bus.beat(Beat(service="inference", instance="engine", boot=BOOT))
    assert bus.versions.confirm(BOOT, 0, "f0") == "ok"
    courier = Courier(bus.prompts)
    courier.start()
    yield Desk(bus, courier)
    courier.close()
    bus.close()


def finished(lease: Lease[Work]) -> list[Completion]:
    engine = Paced(boot=BOOT)
    engine.stage(manifest(0), NoTransport())
    engine.flip()
    engine.add(lease.work)
    return [completion for _ in range(TOKENS) for completion in engine.step()]


def test_members_prefixes_and_a_request_go_together_and_the_answers_come_back_in_order(
    plant: Plant, desk: Desk
) -> None:
    plant.admit(2)
    lease = desk.ask()
    first, second = finished(lease)
    prefix = head(second, 5)
    desk.courier.leave(BOOT, members=[(lease, first)])
    desk.courier.leave(BOOT, prefixes=[(lease, prefix)])
    assert desk.ask(held=(lease.entry,)).group == "g1"
    answers = desk.courier.answers()
    assert [(a.completion, a.reply) for a in answers] == [(first, "ok"), (prefix, "ok")]
    assert plant.delivered() == [first]
    assert plant.ledger() == {"generated": Sum(1, TOKENS + 5)}
    assert desk.courier.answers() == []


def test_nobody_waits_while_the_server_does_not_answer(plant: Plant, desk: Desk) -> None:
    plant.admit()
    lease = desk.ask()
    plant.bus._client.client_pause(300)
    desk.courier.leave(BOOT, members=[(lease, finished(lease)[0])], request=REQUEST)
    assert desk.courier.answers() == [] and desk.courier.away and desk.courier.asked
    desk.courier.wait(20)
    assert [answer.reply for answer in desk.courier.answers()] == ["ok"]


def test_what_the_bus_raised_is_raised_after_the_answers_before_it(
    plant: Plant, desk: Desk
) -> None:
    """A late delivery is answered by its former mark, then the request is refused."""
    plant.admit()
    lease = desk.ask()
    done = finished(lease)[0]
    assert desk.bus.prompts.deliver(BOOT, [(lease, done)]) == ["ok"]
    plant.bus.bury("engine")
    desk.courier.leave(BOOT, members=[(lease, done)], request=REQUEST)
    desk.courier.wait(20)
    assert [answer.reply for answer in desk.courier.answers()] == ["ok"]
    with pytest.raises(Gone):
        desk.courier.answers()


def test_after_clearing_nothing_is_left_of_a_former_boot(plant: Plant, desk: Desk) -> None:
    plant.admit()
    plant.bus.bury("engine")
    desk.courier.leave(BOOT, request=REQUEST)
    desk.courier.wait(20)
    desk.courier.clear()
    assert desk.courier.answers() == [] and desk.courier.taken() is None
    assert not desk.courier.asked


def test_a_lease_that_came_when_the_loop_had_ended_is_given_back(plant: Plant) -> None:
    plant.admit()
    bus = Bus.connect(plant.url, plant.run)
    life = Life(bus, "inference", "engine", metrics=Metrics("inference"))
    bus.beat(Beat(service="inference", instance="engine", boot=life.boot))
    bus.versions.confirm(life.boot, 0, "f0")
    engine = Paced(boot=life.boot)
    numbers = Numbers(Metrics("inference"))
    service = Inference(bus, engine, NoTransport(), life=life, numbers=numbers)
    service.weights.start()
    service.courier.start()
    service.courier.leave(life.boot, request=REQUEST)
    service.hand_back()
    bus.beat(Beat(service="inference", instance="second", boot="second:1"))
    bus.versions.confirm("second:1", 0, "f0")
    taken = bus.prompts.take("second:1", version=0, held=[], count=1)
    assert [(lease.group, lease.strikes) for lease in taken.leases] == [("g0", 0)]
    bus.close()
