"""How old the work on its way is: by the step of the weights that began each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from acts import Acts


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
