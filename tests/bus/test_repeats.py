"""A repeat is harmless: what each act says when it comes again, and what it does not do again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from acts import TRAINER, Acts, prefix

from pipeline.bus.blobs import PIECE_BYTES
from pipeline.bus.scripts import Scripts
from pipeline.ledger import Sum
from pipeline.messages import Score, Span

FEW_BYTES = 50
"""So small a piece that neither a completion nor a score fits into one."""


@pytest.fixture(params=["whole", "in pieces"])
def piece_bytes(request: pytest.FixtureRequest) -> int:
    return PIECE_BYTES if request.param == "whole" else FEW_BYTES


def world(acts: Acts) -> dict[bytes, Any]:
    """All that the server holds of the run, but for beats and who holds what."""
    world: dict[bytes, Any] = {}
    for key in acts.client.scan_iter(acts.keys.prefix + "*"):
        if key not in (acts.keys.beat.encode(), acts.keys.who.encode()):
            kind = acts.client.type(key)
            read = {
                b"hash": acts.client.hgetall,
                b"zset": lambda k: acts.client.zrange(k, 0, -1, withscores=True),
                b"stream": acts.client.xrange,
                b"string": lambda k: (acts.client.ttl(k), acts.client.get(k)),
            }
            world[key] = read[kind](key)
    return world


def prepared(start: Callable[..., Acts]) -> tuple[Acts, dict[str, Any]]:
    acts = start(window=16, per_step=16)
    done = acts.make_ready(2, engine="e:1", scorer="s:1")
    acts.admit(4)
    leases = acts.take("e:1", 3)
    acts.deliver_all("e:1", leases[:1])
    return acts, {"done": done, "leases": leases, "drawn": acts.draw("s:1")}


ACTS: dict[str, tuple[Callable[[Acts, dict[str, Any]], Any], Any, Any]] = {
    "admit": (
        lambda a, x: a.bus.prompts.admit([a.prompt(6)], cursor=6, next_cursor=7, eof=True),
        "ok",
        "ok",
    ),
    "bury": (lambda a, x: a.bus.bury("e"), 1, 0),
    "save": (
        lambda a, x: a.save(
            "e:1", x["leases"][1], prefix(x["leases"][1].group, 0, Span(0, 3, "e:1"))
        ),
        "ok",
        "ok",
    ),
    "deliver": (lambda a, x: a.deliver("e:1", x["leases"][1], 0), "ok", "ok"),
    "score": (lambda a, x: a.score("s:1", x["drawn"]), ["ok", "ok"], ["dup", "dup"]),
    "scorer error": (
        lambda a, x: a.score("s:1", x["drawn"], error="why"),
        ["ok", "ok"],
        ["closed", "closed"],
    ),
    "fail": (lambda a, x: a.bus.prompts.fail("e:1", x["leases"][1], "why"), None, None),
    "give back": (lambda a, x: a.bus.prompts.give_back("e:1", x["leases"]), None, None),
    "lead": (lambda a, x: a.bus.groups.lead(2, TRAINER), None, None),
    "refuse": (
        lambda a, x: a.bus.groups.refuse(1, x["done"][0], {"stale": Sum(2, 10)}),
        None,
        None,
    ),
    "commit": (lambda a, x: a.commit(1, x["done"]), "ok", "old"),
    "announce": (lambda a, x: a.announce(1, step=1), None, None),
    "confirm": (lambda a, x: a.bus.versions.confirm("e:1", 0, "f0"), "ok", "ok"),
    "quarantine": (lambda a, x: a.bus.versions.quarantine("e:1", "why"), None, None),
    "finish": (lambda a, x: a.bus.groups.finish(1, "done", "why"), None, None),
}


@pytest.mark.parametrize("name", ACTS)
def test_a_repeat_changes_nothing(start: Callable[..., Acts], name: str) -> None:
    act, first, again = ACTS[name]
    acts, stage = prepared(start)
    before = world(acts)
    assert act(acts, stage) == first
    after = world(acts)
    assert name in ("bury", "give back", "confirm", "quarantine") or after != before
    for _ in range(2):
        assert act(acts, stage) == again
        assert world(acts) == after


def test_a_repeated_expiry_ends_nothing_more(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    acts.deliver(engine, acts.take(engine)[0], 0)
    acts.overdue("g0"), acts.wake(TRAINER, 60)
    assert acts.bus.groups.expire(TRAINER) == 1
    after = world(acts)
    assert acts.bus.groups.expire(TRAINER) == 0 and world(acts) == after


def test_a_save_that_is_sent_again_is_told_the_same(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    scripts = Scripts(acts.client, acts.keys)

    def send() -> bytes:
        return scripts.call("save", engine, "g0", 0, 0, lease.entry, b"chunk", "", 0, 3, engine)

    assert [send() for _ in range(3)] == [b"ok"] * 3
    acts.deliver(engine, lease, 0)
    acts.bus.groups.finish(1, "done", "")
    assert send() == b"ok", "even after its group was closed"
    assert acts.ledger() == {"generated": Sum(1, 5), "cancelled": Sum(1, 5)}


def test_an_older_save_that_comes_again_changes_nothing(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    for tokens in (3, 8):
        acts.save(engine, lease, prefix("g0", 0, Span(0, tokens, engine)))
    after = world(acts)
    assert acts.save(engine, lease, prefix("g0", 0, Span(0, 3, engine))) == "ok"
    assert world(acts) == after


def test_a_score_that_comes_after_an_error_changes_nothing(acts: Acts) -> None:
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(1)
    acts.deliver_all(engine, acts.take(engine))
    first, _ = acts.draw(scorer)
    acts.score(scorer, [first], error="why")
    after = world(acts)
    assert acts.bus.completions.score(scorer, [(first, Score(reward=1.0))]) == ["dup"]
    assert world(acts) == after


def test_the_reply_to_a_delivery_stands_even_after_its_group_was_closed(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    assert acts.deliver(engine, lease, 0) == "ok"
    acts.bus.groups.refuse(1, "g0", {})
    after = acts.ledger()
    assert acts.deliver(engine, lease, 0) == "ok"
    acts.client.delete(acts.keys.group("g0"))
    assert acts.deliver(engine, lease, 0) == "closed", "its tombstone is gone as well"
    assert acts.ledger() == after
