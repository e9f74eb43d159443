"""A trainer that lost steps, a trainer that resumes, and a server that was put back in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from acts import TRAINER, Acts, balance, completion, prefix

from pipeline.errors import Fenced, SluiceError
from pipeline.ledger import Sum
from pipeline.messages import Manifest, Span

LATER = "training-1:t"


def _at_step_two(start: Callable[..., Acts]) -> Acts:
    """Versions 0, 1, 2 of steps 0, 1, 2; g0 was started by each engine's newest, step 2."""
    acts = start(window=16, per_step=2, lag_max=8)
    for step in (1, 2):
        acts.commit(step, [])
        acts.announce(step, step=step)
    acts.engine("e:1")
    assert acts.bus.versions.confirm("e:1", 2, "f2") == "ok"
    acts.admit(4)
    return acts


def test_after_a_rollback_the_step_is_back_and_later_versions_are_unproven_at_take(
    start: Callable[..., Acts],
) -> None:
    acts = _at_step_two(start)
    acts.bus.groups.rollback(1, 1)
    state = acts.bus.state()
    assert (state.step, state.version, state.batch) == (1, 2, 2), "the number is used for ever"
    assert acts.bus.versions.steps() == {0: 0, 1: 1}
    assert acts.bus.versions.newest() is None, "its weights are nobody's any more"
    assert acts.taken("e:1", version=2) == ("unproven", [])
    assert acts.bus.versions.confirm("e:1", 2, "f2") == "forgotten"
    with pytest.raises(SluiceError, match="only grows"):
        acts.announce(2, step=2)
    acts.announce(3, step=1)
    assert acts.bus.versions.confirm("e:1", 3, "f3") == "ok"
    assert len(acts.take("e:1", version=3)) == 1


def test_a_rollback_to_where_the_run_stands_or_beyond_changes_nothing(
    start: Callable[..., Acts],
) -> None:
    acts = _at_step_two(start)
    for step in (2, 3):
        acts.bus.groups.rollback(1, step)
    assert acts.bus.state().step == 2 and acts.bus.versions.steps() == {0: 0, 1: 1, 2: 2}


def test_what_an_orphan_version_sampled_is_delivered_and_judged_by_the_trainer(
    start: Callable[..., Acts],
) -> None:
    acts = _at_step_two(start)
    [lease] = acts.take("e:1", version=2)
    orphan = Span(2, 5, "e:1")
    assert acts.save("e:1", lease, prefix(lease.group, 0, orphan)) == "ok"
    acts.bus.groups.rollback(1, 1)
    done = [(lease, completion(lease.group, m, orphan)) for m in range(2)]
    assert acts.bus.prompts.deliver("e:1", done) == ["ok", "ok"]
    acts.scorer("s:1")
    acts.score("s:1", acts.draw("s:1"))
    [group] = acts.bus.groups.fetch([lease.group])
    assert group.start_step == 1 and group.members[0].completion.spans == (orphan,)


def test_no_group_waits_for_weights_that_were_lost(start: Callable[..., Acts]) -> None:
    """Their owner dies, and no engine has weights as fresh as those that they began with."""
    acts = _at_step_two(start)
    ready = acts.take("e:1", 1, version=2)
    acts.deliver_all("e:1", ready)
    acts.scorer("s:1")
    acts.score("s:1", acts.draw("s:1"))
    acts.take("e:1", 2, version=2)
    acts.bury("e:1")
    acts.bus.groups.rollback(1, 0)
    acts.announce(3, step=0)
    acts.engine("h:1")
    assert acts.bus.versions.confirm("h:1", 3, "f3") == "ok"
    assert len(acts.take("h:1", 2, version=3)) == 2
    assert [(t.group, t.start_step) for t in acts.ready().groups] == [("g0", 0)]
    assert acts.bus.groups.started() == {0: 3}
    assert acts.bus.audit().faults == ()


def test_a_resumed_trainer_announces_its_versions_again_in_order_under_its_own_epoch(
    acts: Acts,
) -> None:
    for version in (1, 2):
        acts.announce(version, step=version)
    acts.bus.groups.lead(2, LATER)
    for version in (1, 2):
        again = Manifest(
            version=version, step=version, epoch=2, fingerprint=f"f{version}", location="there"
        )
        acts.bus.versions.announce(again, min_version=version)
    newest = acts.bus.versions.newest()
    assert newest and (newest.version, newest.epoch, newest.location) == (2, 2, "there")
    assert acts.bus.versions.steps() == {0: 0, 1: 1, 2: 2}
    other = Manifest(version=2, step=2, epoch=2, fingerprint="other", location="there")
    with pytest.raises(SluiceError, match="another set of weights"):
        acts.bus.versions.announce(other, min_version=2)


def test_a_commit_that_comes_again_long_after_its_groups_were_forgotten_books_nothing(
    acts: Acts,
) -> None:
    groups = acts.make_ready(2)
    acts.commit(1, groups)
    before = acts.ledger()
    for group in groups:
        acts.client.delete(acts.keys.group(group))  # its tombstone's time is over
    acts.bus.groups.lead(2, LATER)
    fates = {g: {"trained": Sum(2, 10)} for g in groups}
    assert acts.bus.groups.commit(2, batch=1, changed=True, fates=fates) == "old"
    assert acts.ledger() == before and acts.bus.state().step == 1
    assert not acts.client.exists(*(acts.keys.group(g) for g in groups))


def test_an_unknown_group_s_tombstone_stands_until_the_cursor_passes_it(acts: Acts) -> None:
    fates = {"g1": {"trained": Sum(2, 10)}}
    acts.bus.groups.commit(1, batch=1, changed=True, fates=fates)
    assert acts.client.ttl(acts.keys.group("g1")) == -1
    acts.admit(1)
    assert acts.client.ttl(acts.keys.group("g1")) == -1, "not yet"
    acts.admit(2)
    assert 0 < acts.client.ttl(acts.keys.group("g1")) <= 600
    assert acts.bus.state().cursor == 3
    assert [lease.group for lease in acts.take(acts.engine("e:1"), 9)] == ["g0", "g2"]


@pytest.fixture
def put_back(acts: Acts) -> Iterator[Callable[[], None]]:
    """The server as it was when the test began."""
    dumps = {key: acts.client.dump(key) for key in acts.client.scan_iter(acts.keys.prefix + "*")}

    def restore() -> None:
        acts.bus.purge()
        for key, dump in dumps.items():
            acts.client.restore(key, 0, dump)

    yield restore


def test_C093_a_server_that_was_put_back_is_told_who_leads_and_what_was_trained(
    put_back: Callable[[], None], acts: Acts
) -> None:
    acts.bus.groups.lead(7, LATER)
    groups = acts.make_ready(2)
    fates: dict[str, Any] = {g: {"trained": Sum(2, 10)} for g in groups}
    acts.bus.groups.commit(7, batch=1, changed=True, fates=fates)
    put_back()
    assert acts.bus.state().epoch == 1
    assert acts.bus.groups.collect(7).batch == 0, "so the trainer knows"
    assert (acts.bus.state().epoch, acts.bus.state().trainer) == (7, LATER)
    with pytest.raises(Fenced):
        acts.bus.groups.collect(1)
    assert acts.bus.groups.commit(7, batch=1, changed=True, fates=fates) == "ok"
    assert acts.admit(3) == "ok"
    acts.engine("e:2")
    assert [lease.group for lease in acts.take("e:2", 3)] == ["g2"]
    assert balance(acts.ledger()) == (0, 0)


def test_a_server_that_was_put_back_hears_of_versions_from_whoever_leads(
    put_back: Callable[[], None], acts: Acts
) -> None:
    acts.bus.groups.lead(7, LATER)
    put_back()
    manifest = Manifest(version=1, step=1, epoch=7, fingerprint="f1", location="there")
    acts.bus.versions.announce(manifest, min_version=1)
    assert acts.bus.state().version == 1 and acts.bus.state().epoch == 7


def test_what_was_trained_and_is_delivered_again_to_a_server_that_lost_it_is_booked_once(
    put_back: Callable[[], None], acts: Acts
) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    acts.deliver_all(engine, [lease])
    put_back()
    acts.admit(1)
    acts.commit(1, ["g0"])
    assert [acts.deliver(engine, lease, m) for m in (0, 1, 1)] == ["late"] * 3
    assert acts.ledger() == {"generated": Sum(2, 10), "trained": Sum(2, 10)}
    assert acts.deliver("other:1", lease, 0, tokens=7) == "late"
    assert acts.ledger()["late"] == Sum(1, 7), "that one was never trained"


def test_a_deadline_does_not_end_what_a_server_that_was_put_back_may_have_lost(
    acts: Acts,
) -> None:
    engine = acts.engine("e:1")
    acts.admit(1)
    acts.deliver(engine, acts.take(engine)[0], 0)
    acts.overdue("g0"), acts.wake(TRAINER, 60)
    assert acts.bus.groups.expire(TRAINER, batch=1) == 0, "the trainer has a commit to send first"
    assert acts.bus.groups.expire(TRAINER, batch=0) == 1


def test_a_member_cut_by_a_second_release_is_trained_where_the_record_says_so(
    start: Callable[..., Acts],
) -> None:
    """Trained whole, the server was put back, and there a deadline cut one member, an error one."""
    acts = start(members=4, enough=2)
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(1)
    acts.deliver_all(engine, acts.take(engine))
    first, *rest = acts.draw(scorer)
    acts.score(scorer, [first], error="why")
    acts.score(scorer, rest[:2])
    acts.overdue("g0"), acts.wake(TRAINER, 60)
    assert acts.bus.groups.expire(TRAINER) == 1
    cut = {"generated": Sum(4, 20), "scorer_error": Sum(1, 5), "cut": Sum(1, 5)}
    assert acts.ledger() == cut
    acts.bus.groups.commit(1, batch=1, changed=True, fates={"g0": {"trained": Sum(4, 20)}})
    told = {fate: sums for fate, sums in acts.ledger().items() if sums != Sum(0, 0)}
    assert told == {"generated": Sum(4, 20), "trained": Sum(4, 20)}


def test_tokens_of_a_save_that_the_server_lost_are_booked_once_whoever_hands_them_in(
    put_back: Callable[[], None], acts: Acts
) -> None:
    put_back()
    a, b = acts.engine("a:1"), acts.engine("b:1")
    acts.admit(1)
    [lease] = acts.take(a)
    acts.bury(a)
    [again] = acts.take(b)
    resumed = completion("g0", 0, Span(0, 7, a), Span(0, 2, b))
    assert acts.bus.prompts.deliver(b, [(again, resumed)]) == ["ok"]
    assert acts.deliver(a, lease, 0, tokens=9) == "duplicate"
    assert acts.ledger() == {"generated": Sum(2, 11), "duplicate": Sum(1, 2)}


def test_acts_under_an_epoch_that_never_led_are_refused(acts: Acts) -> None:
    with pytest.raises(SluiceError, match="lead first"):
        acts.bus.groups.collect(9)
    assert acts.bus.state().trainer == TRAINER


def test_a_look_may_be_limited_to_the_oldest(acts: Acts) -> None:
    acts.make_ready(3)
    ready = acts.bus.groups.collect(1, limit=2)
    assert [t.group for t in ready.groups] == ["g0", "g1"]
    assert (ready.num_ready, ready.alive) == (3, 3)
