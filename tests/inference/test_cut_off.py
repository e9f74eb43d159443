"""An engine that the network is cut off from: it goes on with what it has, and comes back."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from planted_run import TOKENS, Plant, Running, alone, check, ids, wait_until
from proxy import Proxy, between

from pipeline.bus.bus import Bus
from pipeline.bus.connection import client_of
from pipeline.ledger import Sum
from pipeline.messages import Span
from services.inference.courier import Request

Start = Callable[..., Running]
ACT_SECONDS = 0.2
TRIES = 40
"""So many refused connections are several acts that were given up, one after the other."""


@pytest.fixture
def proxy(plant: Plant) -> Iterator[Proxy]:
    if not plant.url.startswith("unix://"):
        pytest.skip("the proxy stands in front of a unix socket")
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        server = Path(plant.url.removeprefix("unix://").partition("?")[0])
        with between(server, Path(folder) / "p.sock") as proxy:
            yield proxy


def far(plant: Plant, proxy: Proxy) -> Bus:
    return Bus(client_of(proxy.url, patience_seconds=ACT_SECONDS), plant.run)


def pull(proxy: Proxy) -> None:
    proxy.faults = ["refuse"] * 100_000


@contextmanager
def cut(proxy: Proxy) -> Iterator[None]:
    """Nothing is carried inside the block, which lasts longer than many acts may."""
    met = len(proxy.met)
    pull(proxy)
    yield
    wait_until(lambda: len(proxy.met) > met + TRIES)
    proxy.faults = []


def test_what_it_finished_while_it_was_cut_off_is_delivered_once_it_is_back(
    plant: Plant, start: Start, proxy: Proxy
) -> None:
    [prompt] = plant.admit()
    running = start(plant, steps=5, bus=far(plant, proxy))
    running.flown(10)
    with cut(proxy):
        running.engine.allow(TOKENS)
        wait_until(lambda: len(running.service.outbox.waiting()) == 2)
    done = plant.await_delivered(2)
    assert ids(done) == ids(alone(prompt))
    assert {c.spans for c in done} == {(Span(0, TOKENS, running.life.boot),)}
    assert plant.ledger() == {"generated": Sum(2, 2 * TOKENS)}


def test_one_that_was_given_up_meanwhile_catches_up_proves_and_takes_work_again(
    plant: Plant, start: Start, proxy: Proxy
) -> None:
    [prompt] = plant.admit()
    running = start(plant, steps=5, bus=far(plant, proxy))
    running.flown(10)
    former = running.life.boot
    with cut(proxy):
        plant.bus.bury("engine")
        other = start(plant, "other")
        assert ids(plant.await_delivered(2)) == ids(alone(prompt))
        plant.announce(1)
        wait_until(lambda: other.service.weights.serves(1))
    wait_until(lambda: running.life.boot != former and running.service.weights.serves(1))
    other.close()
    plant.admit()
    running.engine.allow(TOKENS)
    again = [c for c in plant.await_delivered(4) if c.group == "g1"]
    assert {c.spans for c in again} == {(Span(1, TOKENS, running.life.boot),)}
    assert running.total("lost_tokens") == 10
    assert plant.is_balanced()


def test_what_it_cannot_do_without_an_answer_to_is_done_under_a_new_boot(
    plant: Plant, start: Start, proxy: Proxy
) -> None:
    """Most is left to the courier; that a flip was undone the loop itself has to tell."""
    running = start(plant, bus=far(plant, proxy), canary_gap=0.1)
    wait_until(lambda: running.service.weights.serves(0))
    former, met = running.life.boot, len(proxy.met)
    running.engine.off_once[1] = 0.5

    def in_the_middle_of_a_request() -> None:
        pull(proxy)
        running.service.courier.leave(former, request=Request(0, (), 1))

    running.engine.at_stage = in_the_middle_of_a_request
    plant.announce(1)
    wait_until(lambda: running.life.boot != former)  # while nobody hears of it yet
    wait_until(lambda: len(proxy.met) > met + TRIES)
    running.engine.at_stage = lambda: None
    proxy.faults = []
    wait_until(lambda: running.service.weights.serves(1))
    plant.admit()
    assert {c.spans[0].boot for c in plant.await_delivered(2)} == {running.life.boot}


def test_a_version_that_cannot_be_had_meanwhile_costs_nothing_of_what_is_in_hand(
    plant: Plant, start: Start, proxy: Proxy
) -> None:
    """As where it travels through the server that is away."""
    [prompt] = plant.admit()
    running = start(plant, steps=5, bus=far(plant, proxy))
    running.flown(10)
    boot = running.life.boot
    running.engine.failing[1] = 1

    def once() -> None:
        running.engine.at_stage = lambda: None
        pull(proxy)

    running.engine.at_stage = once
    plant.announce(1)
    wait_until(lambda: running.total("staging_errors") == 1)
    before = running.total("wall_seconds")
    wait_until(lambda: running.total("wall_seconds") > before)  # nobody has heard why
    proxy.faults = []
    wait_until(lambda: running.service.weights.serves(1))
    running.engine.allow(2 * TOKENS)
    done = plant.await_delivered(2)
    assert {c.spans for c in done} == {(Span(0, 5, boot), Span(1, TOKENS - 5, boot))}
    assert running.total("lost_tokens") == 0 and running.total("wrong_flips") == 0
    check(prompt, done)
