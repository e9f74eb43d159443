"""How old the work on its way is: by the step of the weights that began each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from acts import Acts

from pipeline.bus.leases import Lease
from pipeline.messages import Work


def test_groups_in_flight_and_whole_ones_are_counted_by_the_step_that_began_them(
    start: Callable[..., Acts],
) -> None:
    acts = start(window=16, lag_max=2)
    assert acts.bus.start_steps() == (Counter(), Counter())
    acts.make_ready(2)
    engine = acts.engine("e:2")
    acts.admit(4)
    leases = acts.take(engine, 1)
    assert acts.bus.start_steps() == (Counter({0: 1}), Counter({0: 2}))
    acts.commit(1, [])
    acts.announce(1, step=1)
    acts.bus.versions.confirm(engine, 1, "f1")
    status, more = acts.taken(engine, 1, version=1, held=leases)
    assert (status, len(more)) == ("ok", 1)
    assert acts.bus.start_steps() == (Counter({0: 1, 1: 1}), Counter({0: 2}))


def test_what_it_reads_does_not_grow_with_the_groups_alive(start: Callable[..., Acts]) -> None:
    acts, sizes, held = start(window=256, per_step=64), list[int](), list[Lease[Work]]()
    engine = acts.engine("e:2")
    for _ in range(2):
        acts.admit(50)
        held += acts.take(engine, 50, held=held)
        before = acts.client.info("stats")["total_net_output_bytes"]
        flight, _ = acts.bus.start_steps()
        sizes.append(acts.client.info("stats")["total_net_output_bytes"] - before)
        assert flight == Counter({0: len(held)})
    assert len(held) == 100
    assert abs(sizes[1] - sizes[0]) < 50
