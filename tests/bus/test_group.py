"""The life of a group, and the ledger that it leaves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from acts import Acts, balance, completion, prefix
from msgspec.structs import replace

from pipeline.bus.errors import TooLarge
from pipeline.ledger import Sum, in_flight
from pipeline.messages import Span


def test_a_group_goes_from_admission_to_commit_and_the_ledger_balances(acts: Acts) -> None:
    [group] = acts.make_ready(1)
    assert in_flight(acts.ledger()) == 10
    ready = acts.ready()
    assert [(t.group, t.seq, t.start_step) for t in ready.groups] == [("g0", 0, 0)]
    [whole] = acts.bus.groups.fetch([group])
    assert sorted(whole.members) == [0, 1] and whole.start_step == 0
    assert all(m.score is not None and m.score.reward == 1.0 for m in whole.members.values())
    assert whole.members[1].completion.tokens == 5
    assert acts.commit(1, [group]) == "ok"
    assert acts.ledger() == {"generated": Sum(2, 10), "trained": Sum(2, 10)}
    assert acts.bus.snapshot().places.alive == 0
    state = acts.bus.state()
    assert (state.batch, state.step) == (1, 1)


def test_a_group_alive_is_in_exactly_one_place(acts: Acts) -> None:
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")

    def places() -> tuple[int, int, int]:
        p = acts.bus.snapshot().places
        return p.prompts, p.open, p.groups

    acts.admit(1)
    assert places() == (1, 0, 0)
    [lease] = acts.take(engine)
    acts.deliver(engine, lease, 0)
    assert places() == (1, 0, 0)
    acts.deliver(engine, lease, 1)
    assert places() == (0, 1, 0)
    first, second = acts.draw(scorer)
    acts.score(scorer, [first])
    assert places() == (0, 1, 0)
    acts.score(scorer, [second])
    assert places() == (0, 0, 1)


def test_C086_a_closed_group_leaves_no_cargo_and_a_tombstone_that_expires(acts: Acts) -> None:
    [group] = acts.make_ready(1)
    acts.commit(1, [group])
    key = acts.keys.group(group)
    fields = {field.decode() for field in acts.client.hkeys(key)}
    assert fields == {"state", "seq", "n", "d:0:e:1", "d:1:e:1"}
    assert 0 < acts.client.ttl(key) <= 600
    assert acts.client.xlen(acts.keys.prompts) == 0
    assert acts.client.xlen(acts.keys.completions) == 0
    assert acts.client.zcard(acts.keys.groups) == 0


def test_ready_groups_come_by_start_step_and_then_by_admission(acts: Acts) -> None:
    acts.engine("old:1")
    acts.admit(3)
    late = acts.take("old:1", 1)
    acts.commit(1, [])
    acts.announce(1, step=1)
    assert acts.bus.versions.confirm("old:1", 1, "f1") == "ok"
    young = acts.take("old:1", 2, version=1, held=late)
    acts.scorer("s:1")
    for lease in [*reversed(young), *late]:
        acts.deliver_all("old:1", [lease])
        acts.score("s:1", acts.draw("s:1"))
    tickets = acts.ready().groups
    assert [(t.group, t.start_step) for t in tickets] == [("g0", 0), ("g1", 1), ("g2", 1)]


def test_a_saved_prefix_is_resumed_by_the_next_engine_and_every_token_is_booked_once(
    acts: Acts,
) -> None:
    a, b = acts.engine("a:1"), acts.engine("b:1")
    acts.admit(1)
    [lease] = acts.take(a)
    assert acts.save(a, lease, prefix("g0", 0, Span(0, 3, a))) == "ok"
    assert acts.save(a, lease, prefix("g0", 0, Span(0, 7, a))) == "ok"
    assert acts.ledger() == {"generated": Sum(0, 7)}
    acts.bury(a)
    [again] = acts.take(b)
    assert again.strikes == 0, "saved progress is no strike"
    resumed = again.work.prefixes[0]
    assert resumed.tokens == 7 and resumed.spans == (Span(0, 7, a),)
    whole = completion("g0", 0, Span(0, 7, a), Span(0, 2, b))
    assert acts.bus.prompts.deliver(b, [(again, whole)]) == ["ok"]
    assert acts.ledger() == {"generated": Sum(1, 9)}


def test_a_prefix_that_nobody_used_is_superseded(acts: Acts) -> None:
    a, b = acts.engine("a:1"), acts.engine("b:1")
    acts.admit(1)
    [lease] = acts.take(a)
    acts.save(a, lease, prefix("g0", 0, Span(0, 7, a)))
    acts.bury(a)
    [again] = acts.take(b)
    assert acts.deliver(b, again, 0, tokens=4) == "ok"
    assert acts.ledger() == {"generated": Sum(1, 11), "superseded": Sum(0, 7)}


def test_a_save_needs_the_ticket_and_a_member_that_is_still_to_do(acts: Acts) -> None:
    a, b = acts.engine("a:1"), acts.engine("b:1")
    acts.admit(1)
    [lease] = acts.take(a)
    assert acts.save(b, lease, prefix("g0", 0, Span(0, 3, b))) == "lost"
    acts.deliver(a, lease, 0)
    assert acts.save(a, lease, prefix("g0", 0, Span(0, 9, a))) == "dup"
    assert acts.save(a, lease, prefix("g0", 1, Span(9, 3, a))) == "unproven"
    acts.bus.groups.finish(1, "done", "")
    assert acts.save(a, lease, prefix("g0", 1, Span(0, 3, a))) == "closed"


def test_an_error_of_the_scorer_fails_the_member_and_the_group_is_released(acts: Acts) -> None:
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(1)
    acts.deliver_all(engine, acts.take(engine))
    bad, good = acts.draw(scorer)
    acts.score(scorer, [bad], error="it took too long")
    acts.score(scorer, [good])
    [group] = acts.bus.groups.fetch(["g0"])
    assert list(group.members) == [good.member]
    assert group.failed == {bad.member: "scorer_error: it took too long"}
    assert acts.ledger() == {"generated": Sum(2, 10), "scorer_error": Sum(1, 5)}
    fates = {"g0": {"trained": Sum(1, 5)}}
    acts.bus.groups.commit(1, batch=1, changed=True, fates=fates)
    assert balance(acts.ledger()) == (0, 0) and "superseded" not in acts.ledger()


def test_a_group_without_one_score_is_closed(acts: Acts) -> None:
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(2)
    first, second = acts.take(engine, 2)
    acts.deliver_all(engine, [first])
    acts.score(scorer, acts.draw(scorer), error="broken")
    acts.bus.prompts.fail(engine, second, "the prompt is longer than the context")
    assert acts.ready().alive == 0 and acts.ready().groups == []
    assert acts.ledger() == {"generated": Sum(2, 10), "scorer_error": Sum(2, 10)}
    assert [letter["group"] for letter in acts.letters()] == ["g0", "g0", "g1"]
    assert acts.letters()[0]["reason"] == "scorer_error: broken"


def test_a_failed_member_does_not_hold_up_the_others(acts: Acts) -> None:
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    acts.save(engine, lease, prefix("g0", 0, Span(0, 3, engine)))
    acts.bus.prompts.fail(engine, lease, "no room for it", member=0)
    acts.deliver(engine, lease, 1)
    acts.score(scorer, acts.draw(scorer))
    [group] = acts.bus.groups.fetch(["g0"])
    assert list(group.members) == [1] and group.failed == {0: "no room for it"}
    assert acts.ledger() == {"generated": Sum(1, 8), "failed": Sum(0, 3)}


def test_C090_a_message_over_a_megabyte_is_refused_before_anything_is_sent(acts: Acts) -> None:
    acts.admit(1)
    large = acts.prompt(1)
    with pytest.raises(TooLarge, match=r"prompt g1 has \d+ bytes"):
        acts.bus.prompts.admit(
            [replace(large, ids=bytes(1 << 20))], cursor=1, next_cursor=2, eof=False
        )
    assert acts.bus.state().cursor == 1


def test_C067_a_group_past_its_deadline_expires_once(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    acts.deliver(engine, lease, 0)
    assert acts.bus.groups.expire(_trainer(acts)) == 0, "the deadline has not passed"
    acts.overdue("g0")
    assert acts.bus.groups.expire(_trainer(acts)) == 1
    assert acts.bus.groups.expire(_trainer(acts)) == 0
    assert acts.ledger() == {"generated": Sum(1, 5), "expired": Sum(1, 5)}
    assert acts.take(engine) == [], "its ticket went with it"


def test_a_group_that_nobody_delivered_to_has_no_deadline(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    assert acts.client.zcard(acts.keys.due) == 0
    acts.deliver(engine, lease, 0)
    assert acts.client.zcard(acts.keys.due) == 1


def test_a_young_reaper_expires_nothing(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    acts.deliver(engine, acts.take(engine)[0], 0)
    acts.overdue("g0")
    assert acts.bus.groups.expire("training-0:t") == 0
    assert acts.bus.groups.expire(_trainer(acts)) == 1


def test_finish_cancels_what_is_alive_in_every_place(start: Callable[..., Acts]) -> None:
    acts = start(window=16)
    acts.make_ready(2, engine="e:1")
    acts.admit(4)
    leases = acts.take("e:1", 3)
    acts.deliver_all("e:1", leases[:1])
    acts.deliver("e:1", leases[1], 0)
    acts.save("e:1", leases[1], prefix(leases[1].group, 1, Span(0, 4, "e:1")))
    places = acts.bus.snapshot().places
    assert (places.prompts, places.open, places.groups) == (3, 1, 2)
    acts.bus.groups.finish(1, "done", "all steps are made")
    snapshot = acts.bus.snapshot()
    assert snapshot.places.alive == 0 and balance(snapshot.ledger) == (0, 0)
    assert snapshot.ledger["cancelled"] == Sum(7, 39)
    assert (snapshot.state.stop, snapshot.state.reason) == ("done", "all steps are made")
    assert acts.admit(1) == "full", "a finished run takes nothing in"
    acts.bus.groups.finish(1, "failed", "too late to say so")
    assert acts.bus.state().stop == "done"


def test_finish_cancels_a_large_window_in_several_looks(start: Callable[..., Acts]) -> None:
    acts = start(window=1100, members=1)
    for _ in range(11):
        assert acts.admit(100) == "ok"
    engine = acts.engine("e:1")
    acts.deliver_all(engine, acts.take(engine, 4))
    acts.bus.groups.finish(1, "done", "")
    audit = acts.bus.audit()
    assert (audit.alive, audit.faults) == (0, ())
    assert acts.ledger()["cancelled"] == Sum(4, 20)


def test_a_delivery_after_the_end_is_booked_as_late(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    acts.bus.groups.finish(1, "done", "")
    assert acts.deliver(engine, lease, 0) == "late"
    assert acts.ledger() == {"generated": Sum(1, 5), "late": Sum(1, 5)}


def _trainer(acts: Acts) -> str:
    acts.wake("training-0:t", 60)
    return "training-0:t"
