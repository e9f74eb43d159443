"""Admission, the take gate, and what an engine needs before it may take or deliver."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from acts import Acts, completion

from pipeline.errors import Gone
from pipeline.messages import Span


def test_C085_admission_stops_at_the_window_and_at_another_cursor(
    start: Callable[..., Acts],
) -> None:
    acts = start(window=4)
    assert acts.admit(5) == "full"
    assert acts.admit(4) == "ok"
    assert acts.admit(1) == "full"
    stale = acts.bus.prompts.admit([acts.prompt(9)], cursor=2, next_cursor=3, eof=False)
    assert stale == "moved"
    assert acts.bus.state().cursor == 4 and acts.bus.snapshot().places.alive == 4


def test_a_closed_group_frees_its_place(start: Callable[..., Acts]) -> None:
    acts = start(window=2)
    groups = acts.make_ready(2)
    assert acts.admit(1) == "full"
    acts.commit(1, groups)
    assert acts.admit(1) == "ok"


def test_the_end_of_the_data_is_known_to_the_trainer(acts: Acts) -> None:
    assert not acts.ready().eof
    acts.admit(2, eof=True)
    assert acts.ready().eof and acts.ready().alive == 2


def test_an_admission_without_groups_may_move_the_cursor_of_a_full_window(
    start: Callable[..., Acts],
) -> None:
    acts = start(window=1)
    acts.admit(1)
    assert acts.bus.prompts.admit([], cursor=1, next_cursor=1, eof=True) == "ok"
    assert acts.bus.state().eof


def test_C091_admission_pauses_while_the_server_is_short_of_memory(acts: Acts) -> None:
    used = acts.client.info("memory")["used_memory"]
    try:
        acts.client.config_set("maxmemory", int(used * 1.2))
        assert acts.admit(1) == "memory"
        acts.client.config_set("maxmemory", int(used * 0.9))
        assert acts.admit(1) == "memory", "the server itself refuses a plain script"
        acts.beat("e:1")
    finally:
        acts.client.config_set("maxmemory", 0)
    assert acts.admit(1) == "ok"


@pytest.mark.parametrize(("lag_max", "seats"), [(0, 2), (2, 6)])
def test_an_engine_gets_as_many_new_groups_as_will_find_a_seat_in_time(
    start: Callable[..., Acts], lag_max: int, seats: int
) -> None:
    acts = start(window=16, per_step=2, lag_max=lag_max)
    engine = acts.engine("e:1")
    acts.admit(10)
    status, leases = acts.taken(engine, 16)
    assert (status, len(leases)) == ("ok", seats)
    assert acts.taken(engine, 16, held=leases) == ("flip", [])
    acts.commit(1, [])
    assert acts.taken(engine, 16, held=leases) == ("flip", []), "the step moved, its version not"
    acts.announce(1, step=1)
    acts.bus.versions.confirm(engine, 1, "f1")
    status, more = acts.taken(engine, 16, version=1, held=leases)
    assert (status, len(more)) == ("flip", 0), "those before it still need their seats"
    acts.commit(2, [lease.group for lease in leases[:1]], changed=False)
    status, more = acts.taken(engine, 16, version=1, held=leases)
    assert (status, len(more)) == ("ok", 1)


def test_a_version_that_lags_by_just_the_bound_is_fresh_enough(start: Callable[..., Acts]) -> None:
    acts = start(window=16, per_step=2, lag_max=2)
    engine = acts.engine("e:1")
    acts.commit(1, []), acts.commit(2, [])
    acts.admit(4)
    leases = acts.take(engine, 4)
    assert len(leases) == 2, "step 2, version of step 0, and no group before them"
    acts.commit(3, [lease.group for lease in leases])
    assert acts.taken(engine, 4) == ("flip", [])


def test_nothing_to_take_is_no_reason_to_flip(acts: Acts) -> None:
    engine = acts.engine("e:1")
    for batch in range(1, 9):
        acts.commit(batch, [])
    assert acts.taken(engine) == ("ok", [])
    acts.admit(1)
    assert acts.taken(engine) == ("flip", [])


def test_a_first_take_leaves_the_other_engines_their_share(start: Callable[..., Acts]) -> None:
    acts = start(window=7, per_step=8)
    a, b = acts.engine("a:1"), acts.engine("b:1")
    acts.scorer("s:1")
    acts.admit(7)
    first = acts.take(a, 7)
    assert len(first) == 4, "ceil(7 / 2 engines)"
    assert len(acts.take(a, 7, held=first)) == 3, "only the first take is bounded"
    assert acts.take(b, 7) == []


def test_an_unproven_version_takes_nothing(acts: Acts) -> None:
    acts.beat("e:1")
    acts.admit(1)
    assert acts.taken("e:1") == ("unproven", [])
    assert acts.taken("e:1", version=7) == ("unproven", [])
    acts.bus.versions.confirm("e:1", 0, "f0")
    assert len(acts.take("e:1")) == 1


def test_an_unproven_span_is_not_delivered_until_its_version_is_confirmed(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    acts.announce(1, step=1)
    mixed = completion("g0", 0, Span(0, 3, engine), Span(1, 4, engine))
    assert acts.bus.prompts.deliver(engine, [(lease, mixed)]) == ["unproven"]
    assert acts.ledger() == {}
    acts.bus.versions.confirm(engine, 1, "f1")
    assert acts.bus.prompts.deliver(engine, [(lease, mixed)]) == ["ok"]


def test_the_proof_of_one_boot_proves_nothing_of_another(acts: Acts) -> None:
    acts.engine("a:1"), acts.engine("b:1")
    acts.beat("c:1")
    acts.admit(1)
    [lease] = acts.take("a:1")
    foreign = completion("g0", 0, Span(0, 3, "c:1"), Span(0, 4, "a:1"))
    assert acts.bus.prompts.deliver("a:1", [(lease, foreign)]) == ["unproven"]


def test_a_quarantined_engine_takes_nothing(acts: Acts) -> None:
    acts.engine("e:1"), acts.admit(1)
    acts.bus.versions.quarantine("e:1", "wrong weights, twice")
    assert acts.taken("e:1") == ("quarantined", [])
    [seen] = [s for s in acts.bus.snapshot().beats if s.beat.boot == "e:1"]
    assert seen.quarantined == "wrong weights, twice"


def test_a_boot_that_never_beat_may_do_nothing(acts: Acts) -> None:
    acts.admit(1)
    with pytest.raises(Gone):
        acts.take("ghost:1")
    with pytest.raises(Gone):
        acts.draw("ghost:1")
    with pytest.raises(Gone):
        acts.bus.versions.confirm("ghost:1", 0, "f0")
    with pytest.raises(Gone):
        acts.bus.groups.expire("ghost:1")


def test_a_taken_over_group_goes_only_to_weights_as_fresh_as_those_it_began_with(
    acts: Acts,
) -> None:
    old, new = acts.engine("old:1"), acts.engine("new:1")
    acts.announce(1, step=1), acts.commit(1, [])
    acts.bus.versions.confirm(new, 1, "f1")
    acts.admit(1)
    assert len(acts.take(new, version=1)) == 1
    acts.bury(new)
    assert acts.take(old, version=0) == []
    acts.bus.versions.confirm(old, 1, "f1")
    assert len(acts.take(old, version=1)) == 1
