"""Field cases of Redis streams, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from acts import Acts
from servers import running

from pipeline.bus.bus import Bus


@pytest.fixture
def acts(server_url: str, run_name: str) -> Iterator[Acts]:
    bus = Bus.connect(server_url, run_name)
    with redis.Redis.from_url(server_url, protocol=2) as client:
        yield Acts(bus, client, run_name)
    bus.purge()
    bus.close()


def test_C082_a_backlog_is_delivered_once_to_a_group_that_is_made_anew(acts: Acts) -> None:
    acts.admit(2)
    acts.client.xgroup_destroy(acts.keys.prompts, "team")
    late = acts.engine("late:1")
    held = acts.take(late, 1)
    more = acts.take(late, 2, held=held)
    assert sorted(lease.group for lease in held + more) == ["g0", "g1"]
    assert acts.take(late, 2, held=held + more) == []
    assert acts.client.xpending(acts.keys.prompts, "team")["pending"] == 2


def test_C088_work_that_outlasts_the_lease_stays_with_a_boot_that_beats(acts: Acts) -> None:
    slow, other = acts.engine("slow:1"), acts.engine("other:1")
    acts.wake(other, 3600)
    acts.admit(1)
    leases = acts.take(slow)
    for _ in range(3):
        acts.silence(slow, 10)  # most of a lease
        assert acts.take(other) == []
        acts.beat(slow)
    acts.deliver_all(slow, leases)
    assert [lease.strikes for lease in leases] == [0]


def test_C093_after_a_restart_from_the_log_nothing_that_was_settled_comes_again() -> None:
    with running() as server, redis.Redis(unix_socket_path=str(server.socket)) as client:
        bus = Bus.connect(server.url, "run")
        acts = Acts(bus, client, "run", window=100, per_step=100)
        engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
        acts.admit(60)
        leases = acts.take(engine, 60)
        acts.deliver_all(engine, leases)
        acts.score(scorer, drawn := acts.draw(scorer, 60)[:60])
        acts.commit(1, trained := [t.group for t in acts.ready().groups])
        before = acts.ledger()
        server.restart()
        assert acts.commit(1, trained) == "old"
        acts.deliver_all(engine, leases)
        assert set(acts.score(scorer, drawn)) == {"closed"}
        assert acts.take(engine, 100) == [], "no prompt is on the stream any more"
        assert len(acts.draw(scorer, 100)) == 60, "those without a score, which nobody holds"
        assert acts.ledger() == before and acts.bus.audit().faults == ()
        assert acts.bus.state().cursor == 60 and len(trained) == 30
        bus.close()


def test_C091_what_is_in_flight_ends_while_the_server_refuses_writes(acts: Acts) -> None:
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(1)
    leases = acts.take(engine)
    used = acts.client.info("memory")["used_memory"]
    try:
        acts.client.config_set("maxmemory", int(used * 0.9))
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            acts.client.set("plain", "1")
        acts.deliver_all(engine, leases)
        assert set(acts.score(scorer, acts.draw(scorer))) == {"ok"}
        assert acts.commit(1, [lease.group for lease in leases]) == "ok"
    finally:
        acts.client.config_set("maxmemory", 0)
    assert {fate: sums.members for fate, sums in acts.ledger().items()} == {
        "generated": 2,
        "trained": 2,
    }
