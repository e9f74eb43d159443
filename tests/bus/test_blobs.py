"""Cargo over a megabyte: it arrives whole, goes with its group, and nothing of it is left behind.

On Valkey, and on a Redis where the PATH has one.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from acts import TRAINER, Acts, Killed, Spy, Trip, completion, prefix
from msgspec.structs import replace
from servers import binary, running

from pipeline.bus.blobs import MOST_PIECES, PIECE_BYTES, UNCLAIMED_SECONDS
from pipeline.bus.bus import Bus
from pipeline.bus.chunks import head
from pipeline.bus.connection import connect
from pipeline.bus.keys import Keys
from pipeline.bus.leases import Lease
from pipeline.codec import encode
from pipeline.ledger import Sum
from pipeline.messages import Completion, Kept, Score, Span, Work

MEGABYTE = 1 << 20
# Tokens, and ids kept at each: 3 MB is top_k 50 at 15,000 tokens, 20 MB is 32K tokens.
LARGE = {"3 MB": (15_000, 50), "20 MB": (32_768, 150)}


@pytest.fixture(scope="module", params=["valkey", "redis"])
def server_url(request: pytest.FixtureRequest) -> Iterator[str]:
    executable = binary() if request.param == "valkey" else shutil.which("redis-server")
    if not executable:
        pytest.skip("no redis-server in the PATH")
    with running(executable) as server:
        yield server.url


def large(group: str, m: int, boot: str, *, size: str = "3 MB", finish: bool = True) -> Completion:
    """A member of the size with a kept set at each token; no two tokens are alike."""
    tokens, kept = LARGE[size]
    ids = b"".join(i.to_bytes(4, "little") for i in range(tokens))
    sets = b"".join((i * kept).to_bytes(4, "little") * kept for i in range(tokens))
    done = Completion(
        group=group,
        member=m,
        ids=ids,
        logprobs=ids,
        spans=(Span(0, tokens, boot),),
        kept=Kept(counts=kept.to_bytes(4, "little") * tokens, ids=sets),
        finish="stop" if finish else None,
    )
    assert len(sets) > MEGABYTE * int(size.split()[0]) * 0.9
    return done


def pieces(acts: Acts) -> dict[str, int]:
    """Every piece on the server, and for how many seconds it will be there; -1: for good."""
    keys = sorted(acts.client.scan_iter(acts.keys.prefix + "b:*", count=1000))
    return {key.decode(): acts.client.ttl(key) for key in keys}


def of_bytes(done: Completion, number: int) -> Completion:
    """The same, with log-probs so long that its message has this many bytes."""
    longer = replace(done, logprobs=bytes(number // 2))
    return replace(longer, logprobs=bytes(number // 2 + number - len(encode(longer))))


def deliver(acts: Acts, boot: str, lease: Lease[Work], done: Completion) -> str:
    return acts.bus.prompts.deliver(boot, [(lease, done)])[0]


def delivered(acts: Acts, *, size: str = "3 MB") -> Completion:
    """The first member of g0, delivered by e:1, which holds its second."""
    engine = acts.engine("e:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    done = large("g0", 0, engine, size=size)
    assert deliver(acts, engine, lease, done) == "ok"
    assert acts.deliver(engine, lease, 1) == "ok"
    return done


def made_ready(acts: Acts) -> Completion:
    done, scorer = delivered(acts), acts.scorer("s:1")
    assert acts.score(scorer, acts.draw(scorer)) == ["ok", "ok"]
    return done


@pytest.mark.parametrize("size", LARGE)
def test_C090_a_large_member_arrives_whole_and_goes_with_its_group(acts: Acts, size: str) -> None:
    done, scorer = delivered(acts, size=size), acts.scorer("s:1")
    assert {*pieces(acts).values()} == {-1}, "they stay for good"
    lengths = [acts.client.strlen(key) for key in pieces(acts)]
    assert max(lengths) == PIECE_BYTES == MEGABYTE and sum(lengths) > int(size.split()[0]) * 1e6
    assert max(map(len, acts.client.hvals(acts.keys.group("g0")))) < 1000, "the group only refers"
    drawn = acts.draw(scorer)
    assert drawn[0].work.completion == done
    values = bytes(3 * MEGABYTE)
    scores = [(drawn[0], Score(reward=1.0, values=values)), (drawn[1], Score(reward=0.0))]
    assert acts.bus.completions.score(scorer, scores) == ["ok", "ok"]
    assert acts.bus.audit().faults == ()
    assert [ticket.group for ticket in acts.ready().groups] == ["g0"]
    [group] = acts.bus.groups.fetch(["g0"])
    first = group.members[0]
    assert first.completion == done and first.score and first.score.values == values
    sums = {"trained": Sum(2, done.tokens + 5)}
    assert acts.bus.groups.commit(1, batch=1, changed=True, fates={"g0": sums}) == "ok"
    assert pieces(acts) == {} and acts.bus.audit().faults == ()
    assert acts.ledger() == {"generated": Sum(2, done.tokens + 5), **sums}


def test_a_large_prefix_is_resumed_and_goes_when_its_member_is_delivered(acts: Acts) -> None:
    a, b, c = acts.engine("a:1"), acts.engine("b:1"), acts.engine("c:1")
    acts.admit(1)
    [lease] = acts.take(a)
    whole = large("g0", 0, a, size="20 MB", finish=False)
    first = head(whole, 20_000)
    assert acts.save(a, lease, first) == "ok"
    acts.bury(a)
    [again] = acts.take(b)
    assert again.work.prefixes == {0: first}
    spans = (Span(0, 20_000, a), Span(0, whole.tokens - 20_000, b))
    grown = replace(whole, spans=spans)
    assert acts.save(b, again, grown) == "ok", "what was not saved yet, 8 MB"
    assert sum(acts.client.strlen(key) for key in pieces(acts)) < 21 * MEGABYTE
    acts.bury(b)
    [last] = acts.take(c)
    assert last.work.prefixes == {0: grown} and acts.bus.audit().faults == ()
    acts.deliver(c, last, 0)
    assert pieces(acts) == {} and acts.bus.audit().faults == ()


# What becomes of the pieces, however the group ends.


def _commit(acts: Acts) -> None:
    acts.bus.groups.commit(1, batch=1, changed=True, fates={"g0": {}})


def _expire(acts: Acts) -> None:
    acts.overdue("g0"), acts.wake(TRAINER, 60)
    assert acts.bus.groups.expire(TRAINER) == 1


def _fail(acts: Acts) -> None:
    for lease in acts.draw(acts.scorer("s:1")):
        acts.bus.completions.fail("s:1", lease, "why")


ENDS: dict[str, tuple[Callable[[Acts], object], Callable[[Acts], None]]] = {
    "commit": (made_ready, _commit),
    "refuse": (made_ready, lambda a: a.bus.groups.refuse(1, "g0", {})),
    "finish": (made_ready, lambda a: a.bus.groups.finish(1, "done", "")),
    "finish, in scoring": (delivered, lambda a: a.bus.groups.finish(1, "done", "")),
    "expire": (delivered, _expire),
    "fail": (delivered, _fail),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_pieces_go_with_their_group(acts: Acts, end: str) -> None:
    begin, act = ENDS[end]
    begin(acts)
    assert len(pieces(acts)) == 4
    act(acts)
    assert acts.ready().alive == 0 and pieces(acts) == {}
    assert acts.bus.audit().faults == ()


def test_what_is_cut_when_its_group_is_released_loses_its_pieces(
    start: Callable[..., Acts],
) -> None:
    """Neither the delivered member that nobody scored nor the saved prefix is of use any more."""
    acts = start(members=3, enough=1)
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    acts.deliver(engine, lease, 0)
    [drawn] = acts.draw(scorer)
    acts.score(scorer, [drawn])
    assert deliver(acts, engine, lease, large("g0", 1, engine)) == "ok"
    assert acts.save(engine, lease, large("g0", 2, engine, finish=False)) == "ok"
    assert len(pieces(acts)) == 8
    _expire(acts)
    assert [t.group for t in acts.ready().groups] == ["g0"]
    assert pieces(acts) == {} and acts.bus.audit().faults == ()


def test_purge_takes_the_pieces_also_those_that_no_group_has(acts: Acts) -> None:
    made_ready(acts)
    acts.client.set(acts.keys.piece("g9:c:0:ab", 0), b"x", ex=60)
    acts.bus.purge()
    assert list(acts.client.scan_iter(acts.keys.prefix + "*")) == []


# Senders that die, and requests that come again.


@pytest.fixture
def spied(server_url: str, run_name: str, client: redis.Redis) -> Iterator[Callable[..., Acts]]:
    """A run whose bus tells of every round trip."""
    made: list[Bus] = []

    def make(on_trip: Callable[[Trip], None], piece_bytes: int = PIECE_BYTES) -> Acts:
        watched = Spy(connect(server_url), on_trip)
        made.append(Bus(watched, run_name, piece_bytes=piece_bytes))
        return Acts(made[-1], client, run_name)

    yield make
    for bus in made:
        bus.purge(), bus.close()


Spied = Callable[..., Acts]


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("again", ["itself", "another"])
def test_a_sender_that_is_killed_before_any_of_its_trips_leaves_nothing_for_good(
    spied: Spied, before: int, again: str
) -> None:
    """It asks, sends eight pieces, then five, asks again. Then it comes again, or another."""
    left: list[int] = []

    def on_trip(commands: Trip) -> None:
        if left:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

    acts = spied(on_trip, 1 << 18)
    acts.make_ready(1, engine="w:1"), acts.engine("e:1"), acts.engine("f:1")  # scripts are loaded
    acts.admit(1)
    [lease] = acts.take("e:1")
    done = large(lease.group, 0, "e:1")
    left.append(before)
    with pytest.raises(Killed):
        deliver(acts, "e:1", lease, done)
    left.clear()
    assert [*map(len, _by_time(acts))] == [0, (0, 0, 8, 13)[before]]
    assert all(0 < ttl <= UNCLAIMED_SECONDS for ttl in _by_time(acts)[1])
    assert acts.bus.audit().faults == (), "it will be over by itself"
    if again == "another":
        acts.bury("e:1")
        [lease] = acts.take("f:1")
        done = replace(done, spans=(Span(0, done.tokens, "f:1"),))
    assert deliver(acts, done.spans[0].boot, lease, done) == "ok"
    _pass_time(acts)
    assert [*map(len, _by_time(acts))] == [13, 0]
    assert acts.draw(acts.scorer("s:1"))[0].work.completion == done
    assert acts.bus.audit().faults == ()


def _by_time(acts: Acts) -> tuple[list[int], list[int]]:
    """The pieces that stay for good, and those that do not."""
    ttls = [*pieces(acts).values()]
    return [t for t in ttls if t == -1], [t for t in ttls if t != -1]


def _pass_time(acts: Acts) -> None:
    """So long that everything is over that is not for good."""
    for key, ttl in pieces(acts).items():
        if ttl != -1:
            acts.client.delete(key)


def test_whatever_comes_late_and_again_changes_nothing(spied: Spied) -> None:
    """A request that the network kept for long: a piece in use must not expire for it."""
    sent: list[Trip] = []
    acts = spied(sent.append)
    done = delivered(acts)
    before, ledger = pieces(acts), acts.ledger()
    assert {*before.values()} == {-1}
    late = [commands for commands in sent if len(str(commands[0][0])) < 8]  # SET and EVALSHA
    for commands in reversed(late):
        with acts.client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            pipe.execute(raise_on_error=False)
    assert pieces(acts) == before and acts.ledger() == ledger
    assert acts.draw(acts.scorer("s:1"))[0].work.completion == done


def test_a_delivery_that_is_of_no_use_sends_no_piece(spied: Spied) -> None:
    commands: list[str] = []
    acts = spied(lambda trip: commands.extend(str(args[0]) for args in trip))
    done = delivered(acts)
    lease = Lease[Any]("0-1", "g0", None)
    other = replace(done, spans=(Span(0, done.tokens, "f:1"),))
    unproven = replace(done, spans=(Span(7, done.tokens, "e:1"),))
    acts.engine("f:1"), acts.admit(1)
    [second] = acts.take("e:1")
    commands.clear()
    assert deliver(acts, "e:1", lease, done) == "ok", "a repeat"
    assert deliver(acts, "f:1", lease, other) == "duplicate"
    assert deliver(acts, "e:1", second, replace(unproven, group="g1")) == "unproven"
    acts.bus.groups.finish(1, "done", "")
    assert deliver(acts, "e:1", lease, done) == "ok"
    assert deliver(acts, "e:1", second, replace(done, group="g1")) == "late"
    assert "SET" not in commands and pieces(acts) == {}


def test_a_small_member_makes_as_many_trips_as_ever(spied: Spied) -> None:
    trips: list[Trip] = []
    acts = spied(trips.append)
    acts.make_ready(1, engine="w:1"), acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(1)
    [lease] = acts.take("e:1")
    trips.clear()
    acts.deliver("e:1", lease, 0), acts.deliver("e:1", lease, 1)
    acts.score("s:1", acts.draw("s:1"))
    acts.bus.groups.fetch(["g0", "g1"])
    assert len(trips) == 5 and pieces(acts) == {}


# Pieces that are not there.


def _lose(acts: Acts, number: int = 1) -> None:
    acts.client.delete([*pieces(acts)][number])


def _damage(acts: Acts) -> None:
    acts.client.setrange([*pieces(acts)][2], 1000, b"x")


DAMAGE = {"blob_missing: 1 of 4 pieces of g0": _lose, "blob_damaged: g0": _damage}


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_member_whose_pieces_are_lost_fails_alone_in_scoring(acts: Acts, reason: str) -> None:
    done = delivered(acts)
    DAMAGE[reason](acts)
    scorer = acts.scorer("s:1")
    [lease] = acts.draw(scorer)
    assert lease.member == 1
    [letter] = acts.letters()
    assert (letter["group"], letter["member"]) == ("g0", "0")
    assert letter["reason"].startswith(reason)
    acts.score(scorer, [lease])
    [group] = acts.bus.groups.fetch(["g0"])
    assert [*group.members] == [1] and group.failed[0].startswith(reason)
    assert acts.ledger() == {
        "generated": Sum(2, done.tokens + 5), "failed": Sum(1, done.tokens),
    }  # fmt: skip
    assert pieces(acts) == {} and acts.bus.audit().faults == ()


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_member_whose_saved_pieces_are_lost_fails_alone(acts: Acts, reason: str) -> None:
    a, b = acts.engine("a:1"), acts.engine("b:1")
    acts.admit(1)
    [lease] = acts.take(a)
    acts.save(a, lease, large("g0", 0, a, finish=False))
    DAMAGE[reason](acts)
    acts.bury(a)
    [again] = acts.take(b)
    assert again.work.todo == (1,) and again.work.prefixes == {}
    [letter] = acts.letters()
    assert letter["member"] == "0" and letter["reason"].startswith(reason)


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_group_whose_pieces_are_lost_is_closed_as_failed_by_the_trainer(
    acts: Acts, reason: str
) -> None:
    done = made_ready(acts)
    acts.make_ready(1, engine="f:1", scorer="t:1")
    DAMAGE[reason](acts)
    assert [g.prompt.group for g in acts.bus.groups.fetch(["g0", "g1"])] == ["g1"]
    assert [t.group for t in acts.ready().groups] == ["g1"] and pieces(acts) == {}
    [letter] = acts.letters()
    assert (letter["stream"], letter["group"]) == ("groups", "g0")
    assert letter["reason"].startswith(reason)
    assert acts.ledger()["failed"] == Sum(2, done.tokens + 5)
    assert acts.bus.audit().faults == ()


def test_a_group_that_is_closed_while_it_is_read_has_lost_nothing(spied: Spied) -> None:
    """Its pieces went with it, by another trainer's commit."""
    closing: list[Acts] = []

    def on_trip(commands: Trip) -> None:
        if closing and commands[0][0] == "GET":
            _commit(closing.pop())

    acts = spied(on_trip)
    made_ready(acts)
    closing.append(acts)
    assert acts.bus.groups.fetch(["g0"]) == [] and not closing
    assert acts.letters() == [] and acts.bus.state().batch == 1


LOST: dict[str, tuple[Callable[[Acts], object], str]] = {
    "a piece that is gone": (_lose, "cargo c:0 of group g0 has lost 1 pieces"),
    "a piece that would go": (
        lambda a: a.client.expire(next(iter(pieces(a))), 60),
        "cargo c:0 of group g0 has lost 1 pieces",
    ),
    "a group without its pieces": (
        lambda a: a.client.delete(*pieces(a)),
        "cargo c:0 of group g0 has lost 4 pieces",
    ),
    "pieces without a group": (
        lambda a: a.client.delete(a.keys.group("g0")),
        ":0 and 3 more: pieces of cargo that belong to no group",
    ),
    "a piece of another": (
        lambda a: a.client.set(a.keys.piece("g0:c:0:ab", 0), b"x"),
        "b:g0:c:0:ab:0: pieces of cargo that belong to no group",
    ),
    "a piece of nothing": (
        lambda a: a.client.set(a.keys.piece("what", 0), b"x"),
        "b:what:0: pieces of cargo that belong to no group",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_an_audit_names_what_is_lost_and_what_is_left_over(acts: Acts, name: str) -> None:
    made_ready(acts)
    assert acts.bus.audit().faults == ()
    damage, sentence = LOST[name]
    damage(acts)
    faults = acts.bus.audit().faults
    assert any(sentence in fault for fault in faults), faults


# Bounds.


@pytest.fixture
def small(server_url: str, run_name: str, client: redis.Redis) -> Iterator[Acts]:
    """A run whose pieces have a thousand bytes."""
    with contextlib.closing(Bus(connect(server_url), run_name, piece_bytes=1000)) as bus:
        yield Acts(bus, client, run_name)
        bus.purge()


def test_what_was_admitted_is_delivered_on_a_server_that_is_full(acts: Acts) -> None:
    """Beyond maxmemory, where a plain write is refused and only an act may finish."""
    engine = acts.engine("e:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    done = large("g0", 0, engine)
    acts.client.config_set("maxmemory", acts.client.info("memory")["used_memory"] // 2)
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            acts.client.set(acts.keys.piece("x", 0), b"x")
        assert deliver(acts, engine, lease, done) == "ok"
    finally:
        acts.client.config_set("maxmemory", 0)
    assert {*pieces(acts).values()} == {-1}
    assert acts.draw(acts.scorer("s:1"))[0].work.completion == done


MOST_BYTES = MOST_PIECES * PIECE_BYTES


def test_sixty_four_pieces_are_the_most(small: Acts) -> None:
    engine = small.engine("e:1")
    small.admit(1)
    [lease] = small.take(engine)
    done = of_bytes(completion("g0", 0, Span(0, 1, engine)), 64_000)
    assert deliver(small, engine, lease, done) == "ok"
    assert len(pieces(small)) == MOST_PIECES == 64
    more = of_bytes(replace(done, member=1), 64_001)
    for _ in range(2):
        assert deliver(small, engine, lease, more) == "too_large"
    [letter] = small.letters()
    assert letter["reason"].startswith("too_large: member 1 of group g0 has 64001 bytes: it may")
    assert MOST_BYTES == 32_768 * 2048, "as docs/architecture.md says"


def test_C090_a_member_too_large_to_be_delivered_or_saved_fails_alone(small: Acts) -> None:
    """Whoever took the group next would meet the same."""
    engine, scorer = small.engine("e:1"), small.scorer("s:1")
    small.admit(2)
    first, second = small.take(engine, 2)
    done = [(first, completion("g0", m, Span(0, t, engine))) for m, t in ((0, 9000), (1, 5))]
    assert small.bus.prompts.deliver(engine, done) == ["too_large", "ok"]
    assert small.save(engine, second, prefix("g1", 1, Span(0, 9000, engine))) == "too_large"
    assert small.deliver(engine, second, 0) == "ok"
    letters = [(x["group"], x["member"], x["reason"].partition(" has")[0]) for x in small.letters()]
    assert letters == [
        ("g0", "0", "too_large: member 0 of group g0"),
        ("g1", "1", "too_large: prefix of member 1 of group g1"),
    ]
    small.score(scorer, small.draw(scorer))
    assert [list(g.members) for g in small.bus.groups.fetch(["g0", "g1"])] == [[1], [0]]
    assert small.ledger() == {"generated": Sum(2, 10)}


def test_C090_a_score_too_large_to_be_sent_is_a_fault_of_its_scorer(small: Acts) -> None:
    engine, scorer = small.engine("e:1"), small.scorer("s:1")
    small.admit(1)
    small.deliver_all(engine, small.take(engine))
    first, second = small.draw(scorer)
    scores = [(first, Score(reward=1.0, values=bytes(64_000))), (second, Score(reward=1.0))]
    assert small.bus.completions.score(scorer, scores) == ["too_large", "ok"]
    [group] = small.bus.groups.fetch(["g0"])
    assert group.failed[0].startswith("scorer_error: too_large: score of member 0 of g0")
    assert group.members[1].score == Score(reward=1.0)


def test_keys_of_pieces_lie_within_the_run() -> None:
    assert Keys("run").piece("g0:c:1:ab", 3) == "sluice:{run}:b:g0:c:1:ab:3"
