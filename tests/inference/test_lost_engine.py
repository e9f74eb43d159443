"""An engine that cannot go on ends its process, and nothing that it has in hand is lost with it."""

from __future__ import annotations

from collections.abc import Callable

from planted_run import TOKENS, Plant, Running, alone, ids, wait_until

from pipeline.errors import EngineLost
from pipeline.messages import Span

Start = Callable[..., Running]


def test_what_a_lost_engine_has_in_hand_goes_on_elsewhere_at_once(
    plant: Plant, start: Start
) -> None:
    [prompt] = plant.admit()
    running = start(plant, steps=5)
    running.flown(10)
    running.engine.lost = "version 1 broke off half-way"
    wait_until(lambda: not running.thread.is_alive())
    assert isinstance(running.error, EngineLost)
    assert running.total("lost_tokens") == 0
    other = start(plant, "other")
    done = plant.await_delivered(2)
    assert ids(done) == ids(alone(prompt))
    spans = (Span(0, 5, running.life.boot), Span(0, TOKENS - 5, other.life.boot))
    assert {c.spans for c in done} == {spans}
    assert plant.letters() == []
