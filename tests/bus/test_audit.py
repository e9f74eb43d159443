"""The audit: sound runs have no faults, and each kind of damage is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from acts import Acts, prefix

from pipeline.bus.audit import take_audit
from pipeline.bus.scripts import Scripts
from pipeline.ledger import Sum
from pipeline.messages import Span


def _mixed(start: Callable[..., Acts]) -> Acts:
    """Two groups ready, one in scoring, two with their engine (one of them begun), one waiting."""
    acts = start(window=16, per_step=16)
    acts.make_ready(2, engine="e:1", scorer="s:1")
    acts.admit(4)
    leases = acts.take("e:1", 3)
    acts.deliver_all("e:1", leases[:1])
    acts.deliver("e:1", leases[1], 0)
    acts.save("e:1", leases[1], prefix(leases[1].group, 1, Span(0, 4, "e:1")))
    acts.draw("s:1", 1)
    return acts


def test_a_sound_run_has_no_faults_and_its_numbers_are_right(start: Callable[..., Acts]) -> None:
    acts = _mixed(start)
    audit = acts.bus.audit()
    assert audit.faults == () and audit.exact
    places = audit.places
    assert (places.prompts, places.open, places.groups, places.started) == (3, 1, 2, 5)
    assert (audit.alive, audit.window, audit.overdue) == (6, 16, 0)
    assert audit.held == Sum(7, 39)
    held = [(x.owner, x.prompts, x.completions, x.alive) for x in audit.leases]
    assert held == [("e:1", 2, 0, True), ("s:1", 0, 1, True)]
    assert set(audit.oldest_seconds) == {"prompts", "completions", "groups"}
    assert acts.bus.snapshot().places == places


def test_an_audit_in_many_small_looks_counts_the_same(start: Callable[..., Acts]) -> None:
    acts = _mixed(start)
    acts.admit(8)
    scripts = Scripts(acts.client, acts.keys)
    whole = acts.bus.audit()
    pieces = take_audit(scripts, groups_a_look=1)
    assert (pieces.places, pieces.held, pieces.faults) == (whole.places, whole.held, ())


def test_an_empty_and_a_finished_run_are_sound(acts: Acts) -> None:
    assert acts.bus.audit().faults == ()
    acts.make_ready(2)
    acts.bus.groups.finish(1, "done", "")
    audit = acts.bus.audit()
    assert (audit.faults, audit.alive, audit.held) == ((), 0, Sum(0, 0))


def test_the_tickets_of_the_dead_and_of_the_pool_are_told_apart(acts: Acts) -> None:
    a, b = acts.engine("a:1"), acts.engine("b:1")
    acts.admit(3)
    acts.take(a, 2)
    acts.bus.prompts.give_back(b, acts.take(b, 1))
    acts.bury(a)
    told = {x.owner: (x.prompts, x.alive, x.silent_seconds) for x in acts.bus.audit().leases}
    assert told == {"a:1": (2, False, None), "pool": (1, False, None)}


DAMAGE: dict[str, tuple[Callable[[Acts], object], str]] = {
    "a lost prompt ticket": (
        lambda a: a.client.xtrim(a.keys.prompts, maxlen=0, approximate=False),
        "to do and its ticket says otherwise",
    ),
    "a lost completion": (
        lambda a: a.client.xtrim(a.keys.completions, maxlen=0, approximate=False),
        "is delivered and its ticket says otherwise",
    ),
    "a lost ready ticket": (
        lambda a: a.client.zrem(a.keys.groups, "g0"),
        "group g0 is ready and nobody will train it",
    ),
    "a ticket too many": (
        lambda a: a.client.xadd(a.keys.prompts, {"g": "g0"}),
        "of prompts names group g0, which does not name it",
    ),
    "a group ready too early": (
        lambda a: a.client.zadd(a.keys.groups, {"g5": 0}),
        "group g5 is open and waits for training",
    ),
    "a place without a group": (
        lambda a: a.client.zadd(a.keys.live, {"g77": 0}),
        "group g77 holds a place and is unknown",
    ),
    "a group without a place": (
        lambda a: a.client.zrem(a.keys.live, "g0"),
        "group g0 waits for training and holds no place",
    ),
    "a token without a fate": (
        lambda a: a.client.hincrby(a.keys.ledger, "generated|tokens", 3),
        "42 tokens have no fate, and the groups alive hold 39",
    ),
    "a fate too many": (
        lambda a: a.client.hincrby(a.keys.ledger, "trained|members", 99),
        "92 members more have a fate than were made",
    ),
    "a window that is too small": (
        lambda a: a.client.hset(a.keys.run, "window", 5),
        "6 groups are alive, and the window has 5 places",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(start: Callable[..., Acts], name: str) -> None:
    damage, sentence = DAMAGE[name]
    acts = _mixed(start)
    damage(acts)
    faults = acts.bus.audit().faults
    assert any(sentence in fault for fault in faults), faults
