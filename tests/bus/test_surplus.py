"""Over-sampling: a group is whole with its first k scores, and what is left over has its fate."""

from __future__ import annotations

from collections.abc import Callable

from acts import Acts, balance

from pipeline.ledger import Sum


def test_a_group_is_ready_with_its_first_k_scores_and_the_rest_is_surplus(
    start: Callable[..., Acts],
) -> None:
    acts = start(members=4)
    acts.client.hset(acts.keys.run, "id:groups.release", 2)
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    for m in range(3):
        assert acts.deliver(engine, lease, m) == "ok"
    drawn = acts.draw(scorer)
    acts.score(scorer, drawn[:1])
    assert acts.bus.snapshot().places.groups == 0, "one is not enough"
    acts.score(scorer, drawn[1:2])
    assert acts.bus.snapshot().places.groups == 1
    acts.score(scorer, drawn[2:])
    [group] = acts.bus.groups.fetch(["g0"])
    assert len(group.members) == 2
    assert acts.ledger() == {"generated": Sum(3, 15), "surplus": Sum(1, 5)}
    assert acts.bus.audit().faults == ()
    assert acts.deliver(engine, lease, 3) == "late"
    acts.bus.groups.commit(1, batch=1, changed=True, fates={"g0": {"trained": Sum(2, 10)}})
    assert balance(acts.ledger()) == (0, 0)
