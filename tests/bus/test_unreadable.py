"""What another release wrote is dead-lettered with both versions, and stops nobody."""

from __future__ import annotations

import msgspec
from acts import Acts, prefix

from pipeline.ledger import Sum
from pipeline.messages import Span

STRANGE = msgspec.msgpack.encode({"type": "strange/9"})


def _spoil(acts: Acts, group: str, field: str, payload: bytes = STRANGE) -> None:
    acts.client.hset(acts.keys.group(group), field, payload)


def test_C094_an_unreadable_prompt_costs_its_group_only(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(2)
    _spoil(acts, "g0", "prompt")
    assert [lease.group for lease in acts.take(engine, 2)] == ["g1"]
    [letter] = acts.letters()
    assert letter["group"] == "g0"
    assert letter["reason"].startswith(
        "schema_mismatch: got strange/9, this release reads prompt/1"
    )
    assert acts.bus.snapshot().places.alive == 1
    assert acts.bus.snapshot().dead_letters == 1


def test_an_unreadable_prefix_costs_its_member_only(acts: Acts) -> None:
    a, b = acts.engine("a:1"), acts.engine("b:1")
    acts.admit(1)
    [lease] = acts.take(a)
    acts.save(a, lease, prefix("g0", 0, Span(0, 3, a)))
    _spoil(acts, "g0", "p:0:0", b"\xff not msgpack")
    acts.bury(a)
    [again] = acts.take(b)
    assert again.work.todo == (1,) and again.work.prefixes == {}
    [letter] = acts.letters()
    assert letter["member"] == "0" and "reads completion/1" in letter["reason"]


def test_C094_an_unreadable_completion_costs_its_member_only(acts: Acts) -> None:
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(1)
    acts.deliver_all(engine, acts.take(engine))
    _spoil(acts, "g0", "c:1")
    [lease] = acts.draw(scorer)
    assert lease.member == 0
    acts.score(scorer, [lease])
    [group] = acts.bus.groups.fetch(["g0"])
    assert list(group.members) == [0] and group.failed[1].startswith("schema_mismatch")
    assert acts.ledger() == {"generated": Sum(2, 10), "failed": Sum(1, 5)}


def test_an_unreadable_score_costs_its_group_which_the_leader_closes(acts: Acts) -> None:
    first, second = acts.make_ready(2)
    _spoil(acts, first, "r:0")
    assert [g.prompt.group for g in acts.bus.groups.fetch([first, second])] == [second]
    assert [t.group for t in acts.ready().groups] == [second]
    [letter] = acts.letters()
    assert (letter["stream"], letter["group"]) == ("groups", first)
    assert acts.ledger() == {"generated": Sum(4, 20), "failed": Sum(2, 10)}


def test_a_beat_of_another_release_does_not_spoil_the_snapshot(acts: Acts) -> None:
    acts.engine("e:1")
    acts.client.hset(acts.keys.who, "e:1", STRANGE)
    assert [seen.beat.instance for seen in acts.bus.snapshot().beats] == ["training-0"]
