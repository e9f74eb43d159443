"""Leases live by heartbeat: take-over, the young reaper, lost replies, strikes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from acts import Acts, completion, prefix

from pipeline.errors import Gone
from pipeline.ledger import Sum
from pipeline.messages import Beat, Span


def _reaper(acts: Acts, boot: str) -> str:
    acts.engine(boot)
    acts.wake(boot, 60)
    return boot


def test_work_of_a_silent_engine_is_taken_over_once(acts: Acts) -> None:
    dead, heir, other = acts.engine("d:1"), _reaper(acts, "h:1"), _reaper(acts, "o:1")
    acts.admit(2)
    mine = acts.take(dead, 2)
    acts.silence(dead, 14)
    assert acts.take(heir, 2) == [], "its lease still runs"
    acts.silence(dead, 16)
    taken = acts.take(heir, 2)
    assert [lease.entry for lease in taken] == [lease.entry for lease in mine]
    assert acts.take(other, 2) == []


def test_a_buried_engine_is_taken_over_at_once_even_by_a_young_one(acts: Acts) -> None:
    dead, heir = acts.engine("d:1"), acts.engine("h:1")
    acts.admit(1)
    acts.take(dead)
    assert acts.bus.bury("d") == 1
    assert acts.bus.bury("d") == 0
    assert len(acts.take(heir)) == 1


def test_every_boot_of_a_buried_instance_is_dead(acts: Acts) -> None:
    boots = [acts.engine("d:1"), acts.engine("d:2"), acts.engine("dd:1")]
    assert acts.bus.bury("d") == 2
    for boot in boots[:2]:
        with pytest.raises(Gone):
            acts.take(boot)
    assert acts.take(boots[2]) == []


def test_a_young_reaper_takes_nothing_from_the_merely_silent(acts: Acts) -> None:
    dead, young = acts.engine("d:1"), acts.engine("y:1")
    acts.admit(1)
    acts.take(dead)
    acts.silence(dead, 3600)
    assert acts.take(young) == []
    acts.wake(young, 14)
    assert acts.take(young) == []
    acts.wake(young, 15)
    assert len(acts.take(young)) == 1


def test_a_reaper_that_was_silent_itself_takes_nothing(acts: Acts) -> None:
    dead, reaper = acts.engine("d:1"), _reaper(acts, "r:1")
    acts.admit(1)
    acts.take(dead)
    acts.silence(dead, 3600), acts.silence(reaper, 6)
    assert acts.take(reaper) == [], "after an outage every beat is old"
    acts.beat(reaper)
    assert acts.take(reaper) == [], "its gap broke the whole lease that it must have been awake"


def test_a_frozen_engine_is_told_that_it_is_gone_and_its_late_delivery_is_booked_once(
    acts: Acts,
) -> None:
    frozen, heir = acts.engine("f:1"), _reaper(acts, "h:1")
    acts.admit(1)
    [lease] = acts.take(frozen)
    acts.silence(frozen, 16)
    [again] = acts.take(heir)
    assert acts.deliver(frozen, lease, 0) == "gone", "nobody delivered it yet: it is the heir's"
    assert acts.ledger() == {}
    acts.deliver_all(heir, [again])
    assert [acts.deliver(frozen, lease, 0) for _ in range(3)] == ["duplicate"] * 3
    acts.bus.groups.finish(1, "done", "")
    assert [acts.deliver(frozen, lease, 1) for _ in range(3)] == ["late"] * 3
    assert acts.ledger() == {
        "generated": Sum(4, 20),
        "cancelled": Sum(2, 10),
        "duplicate": Sum(1, 5),
        "late": Sum(1, 5),
    }
    with pytest.raises(Gone):
        acts.take(frozen)
    with pytest.raises(Gone):
        acts.beat(frozen)


def test_tokens_that_were_saved_are_not_booked_again_by_a_duplicate(acts: Acts) -> None:
    a, b = acts.engine("a:1"), acts.engine("b:1")
    acts.admit(1)
    [lease] = acts.take(a)
    acts.save(a, lease, prefix("g0", 0, Span(0, 4, a)))
    acts.bury(a)
    [again] = acts.take(b)
    whole = completion("g0", 0, Span(0, 4, a), Span(0, 6, b))
    assert acts.bus.prompts.deliver(b, [(again, whole)]) == ["ok"]
    assert acts.deliver(a, lease, 0, tokens=9) == "duplicate"
    assert acts.ledger() == {"generated": Sum(2, 15), "duplicate": Sum(1, 5)}


def test_a_lost_reply_of_take_gives_the_tickets_back(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(4)
    lost = acts.take(engine, 2)
    again = acts.take(engine, 2)
    assert [lease.entry for lease in again] == [lease.entry for lease in lost]
    assert [lease.strikes for lease in again] == [0, 0]
    assert len(acts.take(engine, 4, held=again)) == 2


def test_a_lost_reply_of_draw_gives_the_tickets_back(acts: Acts) -> None:
    engine, a, b = acts.engine("e:1"), acts.scorer("a:1"), acts.scorer("b:1")
    acts.admit(2)
    acts.deliver_all(engine, acts.take(engine, 2))
    lost = acts.draw(a, 3)
    kept = acts.draw(a, 1, held=lost[:1])
    assert kept[0].entry == lost[1].entry
    assert acts.draw(b)[0].entry == lost[2].entry


def test_tickets_given_back_go_to_another_at_once_and_without_a_strike(acts: Acts) -> None:
    a, b, s, t = acts.engine("a:1"), acts.engine("b:1"), acts.scorer("s:1"), acts.scorer("t:1")
    acts.admit(1)
    mine = acts.take(a)
    acts.bus.prompts.give_back(b, mine)
    assert acts.take(b) == [], "only the owner may"
    acts.bus.prompts.give_back(a, mine)
    [lease] = acts.take(b)
    assert lease.strikes == 0
    acts.deliver_all(b, [lease])
    drawn = acts.draw(s)
    acts.bus.completions.give_back(s, drawn)
    assert [(d.entry, d.strikes) for d in acts.draw(t)] == [(d.entry, 0) for d in drawn]


def test_C087_work_of_a_dead_scorer_is_scored_once(acts: Acts) -> None:
    engine, dead, heir = acts.engine("e:1"), acts.scorer("d:1"), acts.scorer("h:1")
    acts.admit(1)
    acts.deliver_all(engine, acts.take(engine))
    late = acts.draw(dead)
    acts.bury(dead)
    leases = acts.draw(heir)
    assert len(leases) == 2 and [lease.strikes for lease in leases] == [1, 1]
    assert acts.score(dead, late[:1]) == ["gone"]
    assert acts.score(heir, leases) == ["ok", "ok"]
    assert acts.score(dead, late) == ["dup", "dup"]
    assert len(acts.ready().groups) == 1


def test_C087_a_dead_owner_leaves_no_consumer_and_no_pending_ticket_behind(acts: Acts) -> None:
    dead, heir = acts.engine("d:1"), acts.engine("h:1")
    acts.admit(3)
    acts.take(dead, 3)
    acts.bury(dead)
    acts.take(heir, 1)
    names = {
        c["name"]: c["pending"] for c in acts.client.xinfo_consumers(acts.keys.prompts, "team")
    }
    assert names == {b"h:1": 1, b"pool": 2}


def test_a_poison_prompt_is_dead_lettered_and_the_innocent_beside_it_is_not(acts: Acts) -> None:
    acts.admit(2)
    deaths = 0
    for number in range(9):
        boot = acts.engine(f"e{number}:1")
        for lease in acts.take(boot, 2):
            if lease.group == "g0":  # the first that an engine turns to, and its end
                deaths += 1
                acts.bury(boot)
                break
            acts.deliver_all(boot, [lease])
    assert deaths == 4, "two of them in company, which proves nothing, and two alone"
    assert [(x["group"], x["stream"]) for x in acts.letters()] == [("g0", "prompts")]
    assert acts.letters()[0]["reason"] == "poison: 4 owners died with it"
    assert acts.bus.snapshot().places.open == 1, "the innocent one is whole"


def test_C089_a_prompt_that_kills_three_engines_alone_is_given_up(acts: Acts) -> None:
    acts.admit(1)
    for number in range(3):
        boot = acts.engine(f"e{number}:1")
        [lease] = acts.take(boot, 4)
        assert lease.strikes == number
        acts.bury(boot)
    assert acts.take(acts.engine("e9:1"), 4) == []
    assert len(acts.letters()) == 1
    assert acts.bus.snapshot().places.alive == 0


def test_from_the_second_strike_on_a_ticket_is_taken_alone_and_by_empty_hands(acts: Acts) -> None:
    acts.admit(3)
    busy = acts.engine("busy:1")
    own = acts.take(busy, 1)
    for number in range(2):
        boot = acts.engine(f"e{number}:1")
        assert [lease.strikes for lease in acts.take(boot, 2)] == [number] * 2
        acts.bury(boot)
    idle = acts.engine("idle:1")
    assert acts.take(busy, 3, held=own) == [], "its hands are full"
    acts.admit(1)
    [alone] = acts.take(idle, 3)
    assert (alone.group, alone.strikes) == ("g1", 2)
    assert acts.take(idle, 3, held=[alone]) == [], "it stays alone"
    acts.deliver(idle, alone, 0)
    assert [x.group for x in acts.take(idle, 3, held=[alone])] == ["g3"], "progress cleared it"
    assert [x.group for x in acts.take(acts.engine("next:1"), 3)] == ["g2"]


def test_deaths_with_progress_are_no_strikes(acts: Acts) -> None:
    acts.admit(1)
    tokens = 0
    for number in range(6):
        boot = acts.engine(f"e{number}:1")
        [lease] = acts.take(boot)
        assert lease.strikes == 0
        old = lease.work.prefixes.get(0)
        spans = (*(old.spans if old else ()), Span(0, 2, boot))
        assert acts.save(boot, lease, prefix("g0", 0, *spans)) == "ok"
        tokens += 2
        acts.bury(boot)
    assert acts.letters() == [] and acts.ledger() == {"generated": Sum(0, tokens)}


def test_only_the_owner_of_a_ticket_may_fail_it(acts: Acts) -> None:
    former, owner = acts.engine("a:1"), acts.engine("b:1")
    acts.admit(1)
    [lease] = acts.take(former)
    acts.bus.prompts.give_back(former, [lease])
    assert len(acts.take(owner)) == 1
    acts.bus.prompts.fail(former, lease, "why")
    assert acts.letters() == [] and acts.bus.snapshot().places.alive == 1


def test_C089_a_poison_completion_costs_its_member_and_not_the_group(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    acts.deliver(engine, lease, 0)
    for number in range(3):
        boot = acts.scorer(f"s{number}:1")
        [drawn] = acts.draw(boot)
        assert drawn.strikes == number
        acts.bury(boot)
    scorer = acts.scorer("s9:1")
    assert acts.draw(scorer) == []
    assert [(x["stream"], x["member"]) for x in acts.letters()] == [("completions", "0")]
    acts.deliver(engine, lease, 1)
    acts.score(scorer, acts.draw(scorer))
    [group] = acts.bus.groups.fetch(["g0"])
    assert list(group.members) == [1] and "poison" in group.failed[0]
    assert acts.ledger() == {"generated": Sum(2, 10), "failed": Sum(1, 5)}


def test_a_scorer_draws_a_struck_completion_alone_as_well(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    acts.deliver_all(engine, acts.take(engine))
    for number in range(2):
        boot = acts.scorer(f"s{number}:1")
        assert len(acts.draw(boot)) == 2
        acts.bury(boot)
    scorer = acts.scorer("s9:1")
    [alone] = acts.draw(scorer)
    acts.admit(1)
    acts.deliver_all(engine, acts.take(engine))
    assert acts.draw(scorer, held=[alone]) == [], "it stays alone"
    acts.score(scorer, [alone])
    assert [lease.strikes for lease in acts.draw(scorer)] == [2]


def test_a_beat_names_the_held_groups_that_are_no_longer_open(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(2)
    acts.take(engine, 2)
    beat = Beat(service="inference", instance="e", boot=engine)
    assert acts.bus.beat(beat, ["g0", "g1"]).closed == ()
    acts.bus.groups.refuse(1, "g0", {})
    assert acts.bus.beat(beat, ["g0", "g1", "g77"]).closed == ("g0", "g77")


def test_C083_waiting_for_work_ends_when_it_comes_and_when_the_time_is_over(acts: Acts) -> None:
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    began = time.monotonic()
    assert acts.bus.completions.draw(scorer, held=[], count=1, wait=0.1) == []
    assert 0.1 <= time.monotonic() - began < 1
    acts.admit(1)
    acts.deliver_all(engine, acts.take(engine))
    assert acts.bus.completions.draw(scorer, held=[], count=1, wait=60)


def test_boots_are_forgotten_a_day_after_their_end(acts: Acts) -> None:
    acts.engine("old:1"), acts.engine("dead:1")
    acts.admit(1)
    acts.take("old:1")
    acts.silence("old:1", 90_000)
    acts.bury("dead:1")
    acts.engine("new:1")
    boots = {seen.beat.boot for seen in acts.bus.snapshot().beats}
    assert boots == {"training-0:t", "dead:1", "new:1"}
    assert len(acts.take("new:1")) == 1, "what it held is the next one's"


@pytest.mark.parametrize("stream", ["prompts", "completions"])
def test_C080_a_deleted_stream_comes_back_with_the_tickets_of_what_is_alive(
    start: Callable[..., Acts], stream: str
) -> None:
    acts = start(window=16, per_step=16)
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(3)
    acts.deliver_all(engine, acts.take(engine, 1))
    lost = acts.take(engine, 1)
    acts.draw(scorer, 1)
    acts.client.delete(getattr(acts.keys, stream))
    acts.admit(3)
    leases = acts.take(engine, 16, held=lost if stream == "completions" else [])
    groups = [lease.group for lease in leases]
    assert sorted(groups) == [f"g{i}" for i in range(1 if stream == "prompts" else 2, 6)]
    assert len(acts.draw(scorer, 16)) == 2
    acts.deliver_all(engine, leases)
    assert acts.deliver(engine, lost[0], 0) == "ok"
