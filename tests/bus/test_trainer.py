"""The trainer's acts: leading, commits and their closing sums, refusals, versions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from acts import TRAINER, Acts, balance, prefix

from pipeline.errors import Fenced, SluiceError
from pipeline.ledger import Sum
from pipeline.messages import Manifest, Span


def test_a_commit_in_order_is_ok_a_former_one_old_and_a_later_one_behind(acts: Acts) -> None:
    first, second = acts.make_ready(2)
    assert acts.commit(2, [second]) == "behind"
    assert acts.bus.snapshot().places.groups == 2
    assert acts.commit(1, [first]) == "ok"
    before = acts.bus.snapshot()
    assert acts.commit(1, [first]) == "old"
    assert acts.bus.snapshot().ledger == before.ledger
    assert acts.bus.state() == before.state
    assert acts.commit(2, [second], changed=False) == "ok"
    state = acts.bus.state()
    assert (state.batch, state.step) == (2, 1), "a step that changed nothing is none"


def test_an_old_commit_closes_what_still_lives_of_it(acts: Acts) -> None:
    first, second = acts.make_ready(2)
    acts.commit(1, [first])
    assert acts.commit(1, [first, second]) == "old"
    snapshot = acts.bus.snapshot()
    assert snapshot.places.alive == 0 and balance(snapshot.ledger) == (0, 0)
    assert snapshot.state.step == 1


def test_what_the_sums_leave_out_is_superseded(acts: Acts) -> None:
    [group] = acts.make_ready(1)
    fates = {group: {"trained": Sum(1, 4), "stale": Sum(0, 2)}}
    acts.bus.groups.commit(1, batch=1, changed=True, fates=fates)
    assert acts.ledger() == {
        "generated": Sum(2, 10),
        "trained": Sum(1, 4),
        "stale": Sum(0, 2),
        "superseded": Sum(1, 4),
    }


def test_what_the_sums_name_and_the_server_lacks_was_generated_too(acts: Acts) -> None:
    [group] = acts.make_ready(1)
    fates = {group: {"trained": Sum(3, 15)}, "g77": {"trained": Sum(2, 6)}}
    acts.bus.groups.commit(1, batch=1, changed=True, fates=fates)
    assert acts.ledger() == {"generated": Sum(5, 21), "trained": Sum(5, 21)}
    assert acts.client.ttl(acts.keys.group("g77")) == -1, "until the cursor passes it"


def test_C093_a_group_that_was_trained_before_the_server_lost_it_is_not_admitted_again(
    acts: Acts,
) -> None:
    acts.bus.groups.commit(1, batch=1, changed=True, fates={"g0": {"trained": Sum(2, 10)}})
    assert acts.admit(2) == "ok"
    assert [lease.group for lease in acts.take(acts.engine("e:1"), 2)] == ["g1"]
    assert 0 < acts.client.ttl(acts.keys.group("g0")) <= 600


def test_a_refused_group_is_closed_with_its_sums(acts: Acts) -> None:
    first, second = acts.make_ready(2)
    acts.bus.groups.refuse(1, first, {"stale": Sum(2, 10)})
    acts.bus.groups.refuse(1, first, {"stale": Sum(2, 10)})
    assert [t.group for t in acts.ready().groups] == [second]
    assert acts.ledger() == {"generated": Sum(4, 20), "stale": Sum(2, 10)}


def test_a_former_trainer_is_fenced_in_every_act(acts: Acts) -> None:
    [group] = acts.make_ready(1)
    acts.bus.groups.lead(2, "training-1:t")
    groups, versions = acts.bus.groups, acts.bus.versions
    for act in (
        lambda: groups.lead(1, TRAINER),
        lambda: groups.lead(2, TRAINER),
        lambda: groups.collect(1),
        lambda: groups.refuse(1, group, {}),
        lambda: groups.commit(1, batch=1, changed=True, fates={}),
        lambda: groups.finish(1, "failed", ""),
        lambda: versions.announce(_manifest(1), min_version=1),
    ):
        with pytest.raises(Fenced):
            act()
    assert acts.bus.state().batch == 0
    assert [t.group for t in groups.collect(2).groups] == [group]


def test_a_group_closed_meanwhile_is_left_out_of_a_fetch(acts: Acts) -> None:
    first, second = acts.make_ready(2)
    acts.bus.groups.refuse(1, first, {})
    assert [g.prompt.group for g in acts.bus.groups.fetch([first, second, "g77"])] == [second]


def _manifest(version: int, fingerprint: str = "", epoch: int = 1) -> Manifest:
    return Manifest(
        version=version,
        step=version,
        epoch=epoch,
        fingerprint=fingerprint or f"f{version}",
        location="here",
    )


def test_a_version_only_grows_and_never_names_two_sets_of_weights(acts: Acts) -> None:
    announce = acts.bus.versions.announce
    announce(_manifest(3), min_version=1)
    for manifest, least, rule in (
        (_manifest(3, "other"), 1, "another set of weights"),
        (_manifest(2), 1, "only grows"),
        (_manifest(4), 5, "only grows"),
        (_manifest(4, epoch=2), 1, "lead first"),
    ):
        with pytest.raises(SluiceError, match=rule):
            announce(manifest, min_version=least)
    announce(_manifest(3), min_version=4)
    newest = acts.bus.versions.newest()
    assert newest == _manifest(3) and acts.bus.state().version == 3


def test_before_the_first_version_there_is_none(start: Callable[..., Acts]) -> None:
    acts = start()
    acts.bus.purge()
    acts.bus.open({}, window=1, per_step=1, lag_max=0, members=1)
    assert acts.bus.versions.newest() is None and acts.bus.state().version == -1


def test_a_wrong_fingerprint_is_no_proof(acts: Acts) -> None:
    acts.beat("e:1")
    confirm = acts.bus.versions.confirm
    assert confirm("e:1", 0, "f9") == "wrong"
    acts.admit(1)
    assert acts.taken("e:1") == ("unproven", [])
    acts.announce(2, step=1)
    assert confirm("e:1", 1, "f1") == "forgotten", "nobody will ever announce it"
    with pytest.raises(SluiceError, match="was not announced"):
        confirm("e:1", 3, "f3")
    assert confirm("e:1", 2, "f2") == "ok"


def test_a_rejected_version_is_seen(acts: Acts) -> None:
    acts.engine("e:1")
    acts.bus.versions.reject("e:1", 1, "a checksum is off")
    [seen] = [s for s in acts.bus.snapshot().beats if s.beat.boot == "e:1"]
    assert seen.rejected == "version 1: a checksum is off"


def test_a_rejected_version_is_forgotten_with_the_next_proof(acts: Acts) -> None:
    acts.engine("e:1")
    acts.bus.versions.reject("e:1", 1, "a checksum is off")
    acts.announce(1, step=1)
    assert acts.bus.versions.confirm("e:1", 1, "wrong") == "wrong"
    assert _rejected(acts)
    assert acts.bus.versions.confirm("e:1", 1, "f1") == "ok"
    assert not _rejected(acts)


def _rejected(acts: Acts) -> str:
    [seen] = [s for s in acts.bus.snapshot().beats if s.beat.boot == "e:1"]
    return seen.rejected


def test_versions_that_nobody_can_name_any_more_are_forgotten(acts: Acts) -> None:
    acts.engine("e:1")
    for version in range(1, 1100):
        acts.announce(version, step=version)
    assert acts.client.hlen(acts.keys.versions) <= 2 * 1002
    assert not acts.client.exists(acts.keys.proof(0)), "nor who had proven them"
    assert acts.bus.versions.confirm("e:1", 1099, "f1099") == "ok"


def test_versions_that_a_living_group_may_name_are_kept(acts: Acts) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    for version in range(1, 1100):
        acts.announce(version, step=version)
    assert acts.save(engine, lease, prefix("g0", 0, Span(0, 1, engine))) == "ok"
    assert acts.deliver(engine, lease, 0) == "ok"
