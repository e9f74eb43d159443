"""A random walk: some thousand acts by boots that die, freeze and repeat themselves.

Whatever the order, each group alive is in one place, each token in one place of the ledger, and no
member is committed twice. Evaluations go on beside them, each on the weights that it is pinned to.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from acts import TRAINER, Acts, balance, completion, prefix
from msgspec.structs import replace

from pipeline.bus.evaluations import group_name
from pipeline.bus.leases import Answerable, Lease
from pipeline.errors import Gone
from pipeline.ledger import Sum
from pipeline.messages import Group, Score, Span, Work

ACTS = 2500
HELD_OUT = 3


class Engine:
    """A boot of inference; `spans` is how far each of its members has come. It keeps the weights of
    version `pinned` for an evaluation."""

    def __init__(self, boot: str) -> None:
        self.boot, self.version, self.pinned = boot, -1, -1
        self.leases: list[Lease[Work]] = []
        self.spans: dict[tuple[str, int], tuple[Span, ...]] = {}

    def grow(self, lease: Lease[Work], m: int, tokens: int) -> tuple[Span, ...]:
        saved = lease.work.prefixes.get(m)
        old = self.spans.get((lease.group, m), saved.spans if saved else ())
        pin = lease.work.prompt.pin
        new = (*old, Span(self.version if pin is None else pin, tokens, self.boot))
        self.spans[lease.group, m] = new
        return new


class Walk:
    def __init__(self, acts: Acts, seed: int) -> None:
        self.acts, self.rng, self.number = acts, random.Random(seed), 0
        self.engines: list[Engine] = []
        self.scorers: dict[str, list[Lease[Answerable]]] = {}
        self.frozen: list[Engine] = []
        self.batch = self.version = 0
        self.committed: Counter[tuple[str, int]] = Counter()
        self.delivered: set[tuple[str, int]] = set()
        self.repeats: list[Callable[[], object]] = []
        self.graded: dict[int, int] = {}
        self.forgone = 0
        acts.wake(TRAINER, 60)
        for _ in range(3):
            self.new_engine()
            self.new_scorer()

    def new_engine(self) -> None:
        self.number += 1
        engine = Engine(f"e{self.number}:1")
        self.acts.beat(engine.boot)
        self.acts.wake(engine.boot, 60)
        self.engines.append(engine)
        self.flip(engine)

    def new_scorer(self) -> None:
        self.number += 1
        boot = self.acts.scorer(f"s{self.number}:1")
        self.acts.wake(boot, 60)
        self.scorers[boot] = []

    def flip(self, engine: Engine) -> None:
        if engine.version != self.version:
            assert (
                self.acts.bus.versions.confirm(engine.boot, self.version, f"f{self.version}")
                == "ok"
            )
            engine.version = self.version
        if engine.pinned <= self.acts.bus.snapshot().evaluation.last:
            engine.pinned = self.version

    # One act each; `step` chooses.

    def admit(self) -> None:
        cursor, count = self.acts.bus.state().cursor, self.rng.randint(0, 3)
        prompts = [self.acts.prompt(seq) for seq in range(cursor, cursor + count)]
        self.twice(
            lambda: self.acts.bus.prompts.admit(
                prompts, cursor=cursor, next_cursor=cursor + count, eof=False
            )
        )

    def take(self) -> None:
        engine = self.rng.choice(self.engines)
        if self.rng.random() < 0.1:
            engine.leases = self.rng.sample(engine.leases, len(engine.leases) // 2)
        held = [lease.entry for lease in engine.leases]
        engine.leases += self.acts.bus.prompts.take(
            engine.boot, version=engine.version, held=held, count=self.rng.randint(1, 4),
            pin=engine.pinned, pinned_count=self.rng.randint(0, 2),
        ).leases  # fmt: skip

    def evaluate(self) -> None:
        """Prompting's: some more held-out groups, of a version that an engine keeps."""
        standing = self.acts.bus.snapshot().evaluation
        version = standing.version
        if version < 0:
            version = self.rng.choice(self.engines).pinned
        first = standing.cursor if standing.version >= 0 else 0
        prompts = [
            replace(self.acts.prompt(n), group=group_name(version, n), seq=n, pin=version)
            for n in range(first, min(HELD_OUT, first + self.rng.randint(1, 4)))
        ]
        self.twice(
            lambda: self.acts.bus.evaluations.admit(
                prompts, version=version, size=HELD_OUT, first=first
            )
        )

    def note(self) -> None:
        """The trainer's: what is complete is noted, and what nobody can do is given up."""
        standing, desk = self.acts.bus.snapshot().evaluation, self.acts.bus.evaluations
        if standing.is_complete:
            graded = desk.graded()
            assert sorted(graded.outcomes) == [*range(HELD_OUT)]
            self.graded[standing.version] = self.graded.get(standing.version, 0) + 1
            self.twice(lambda: desk.conclude(1, standing.version))
        elif standing.version >= 0 and standing.version not in {e.pinned for e in self.engines}:
            self.forgone += 1
            desk.forgo(1, standing.version)

    def save(self) -> None:
        if found := self.some_member(self.engines):
            engine, lease, m = found
            chunk = prefix(lease.group, m, *engine.grow(lease, m, self.rng.randint(1, 9)))
            self.twice(lambda: self.acts.save(engine.boot, lease, chunk))

    def deliver(self) -> None:
        owners = self.frozen if self.frozen and self.rng.random() < 0.15 else self.engines
        if found := self.some_member(owners):
            engine, lease, m = found
            done = completion(lease.group, m, *engine.grow(lease, m, self.rng.randint(1, 9)))
            if self.twice(lambda: self.acts.bus.prompts.deliver(engine.boot, [(lease, done)])) == [
                "ok"
            ]:
                self.delivered.add((lease.group, m))

    def draw(self) -> None:
        boot = self.rng.choice(list(self.scorers))
        held = self.scorers[boot]
        self.scorers[boot] += self.acts.draw(boot, self.rng.randint(1, 5), held=held)

    def score(self) -> None:
        boot = self.rng.choice(list(self.scorers))
        if self.scorers[boot]:
            lease = self.scorers[boot].pop(self.rng.randrange(len(self.scorers[boot])))
            score = Score(reward=1.0)
            if self.rng.random() < 0.1:
                score = Score(reward=None, error="why")
            self.twice(lambda: self.acts.bus.completions.score(boot, [(lease, score)]))

    def give_back(self) -> None:
        engine = self.rng.choice(self.engines)
        self.twice(lambda: self.acts.bus.prompts.give_back(engine.boot, list(engine.leases)))
        engine.leases = []

    def fail(self) -> None:
        if self.rng.random() < 0.3 and (found := self.some_member(self.engines)):
            engine, lease, m = found
            member = self.rng.choice([m, None])
            self.twice(lambda: self.acts.bus.prompts.fail(engine.boot, lease, "why", member))

    def kill(self) -> None:
        if self.rng.random() < 0.5:
            engine = self.rng.choice(self.engines)
            self.acts.bury(engine.boot)
            self.end(engine)
        else:
            boot = self.rng.choice(list(self.scorers))
            self.acts.bury(boot)
            del self.scorers[boot]
            self.new_scorer()

    def freeze(self) -> None:
        engine = self.rng.choice(self.engines)
        self.acts.silence(engine.boot, 20)
        self.end(engine)

    def end(self, engine: Engine) -> None:
        self.engines.remove(engine)
        self.frozen = [*self.frozen[-5:], engine]
        self.new_engine()

    def expire(self) -> None:
        due = self.acts.client.zrange(self.acts.keys.due, 0, -1)
        if due and self.rng.random() < 0.2:
            self.acts.overdue(self.rng.choice(due).decode())
            self.acts.bus.groups.expire(TRAINER)

    def commit(self) -> None:
        tickets = [t.group for t in self.acts.ready().groups]
        groups = self.acts.bus.groups.fetch(tickets[: self.rng.randint(0, 3)])
        if not groups:
            return
        if self.rng.random() < 0.2:
            self.acts.bus.groups.refuse(1, groups[0].prompt.group, {"stale": _sum(groups[0])})
            return
        self.batch += 1
        batch, changed = self.batch, self.rng.random() < 0.8
        fates = {g.prompt.group: {"trained": _sum(g)} for g in groups}
        reply = self.twice(
            lambda: self.acts.bus.groups.commit(1, batch=batch, changed=changed, fates=fates)
        )
        assert reply == "ok"
        self.committed.update((g.prompt.group, m) for g in groups for m in g.members)
        if changed:
            self.version += 1
            self.acts.announce(self.version, step=self.acts.bus.state().step)

    def turn(self) -> None:
        self.flip(self.rng.choice(self.engines))
        for engine in self.engines:
            self.acts.beat(engine.boot)

    def repeat(self) -> None:
        if self.repeats:
            self.rng.choice(self.repeats)()

    # What the acts are made of.

    def twice(self, act: Callable[[], object]) -> object:
        """Do it, and keep it, so that it may come again much later."""
        self.repeats = [*self.repeats[-30:], act]
        return act()

    def some_member(self, engines: list[Engine]) -> tuple[Engine, Lease[Work], int] | None:
        engine = self.rng.choice(engines)
        if not engine.leases:
            return None
        lease = self.rng.choice(engine.leases)
        return engine, lease, self.rng.choice(lease.work.todo)

    def step(self) -> None:
        acts = {
            self.admit: 6, self.take: 10, self.save: 8, self.deliver: 25, self.draw: 12,
            self.score: 25, self.give_back: 1, self.fail: 1, self.kill: 2, self.freeze: 1,
            self.evaluate: 3, self.note: 3, self.expire: 1, self.commit: 6, self.turn: 3,
            self.repeat: 8,
        }  # fmt: skip
        [act] = self.rng.choices(list(acts), list(acts.values()))
        act()

    def audit(self) -> None:
        """Every group alive stands in one place, and what it holds is what the ledger lacks."""
        keys, client = self.acts.keys, self.acts.client
        places: Counter[str] = Counter()
        held: Counter[str] = Counter()
        places.update(fields[b"g"].decode() for _, fields in client.xrange(keys.prompts))
        places.update(group.decode() for group in client.zrange(keys.groups, 0, -1))
        for group in (g.decode() for g in client.zrange(keys.live, 0, -1)):
            fields = client.hgetall(keys.group(group))
            assert fields[b"state"] in (b"open", b"ready"), group
            assert places.pop(group, 0) <= 1, f"{group} is in two places"
            held["tokens"] += sum(int(v) for k, v in fields.items() if k[:2] == b"u:")
            held["members"] += sum(k[:2] == b"c:" for k in fields)
        assert not places, "a ticket of a group that is not alive"
        assert balance(self.acts.ledger()) == (held["members"], held["tokens"])
        assert self.acts.bus.audit().faults == (), "of held-out groups as well"


def _sum(group: Group) -> Sum:
    return Sum(len(group.members), sum(m.completion.tokens for m in group.members.values()))


@pytest.mark.parametrize("seed", range(2))
def test_no_order_of_acts_loses_a_token_or_commits_a_member_twice(
    start: Callable[..., Acts], seed: int
) -> None:
    acts = start(window=12, per_step=3, lag_max=2, members=3)
    walk = Walk(acts, seed)
    for number in range(ACTS):
        try:
            walk.step()
        except Gone:  # a beat of one that others have buried meanwhile
            revive(walk)
        if number % 50 == 0:
            walk.audit()
    walk.audit()
    acts.bus.groups.finish(1, "done", "the walk is over")
    for engine in walk.frozen:
        for lease in engine.leases:
            for m in lease.work.todo:
                acts.deliver(engine.boot, lease, m)
    walk.audit()
    snapshot = acts.bus.snapshot()
    assert snapshot.places.alive == 0 and balance(snapshot.ledger) == (0, 0)
    assert snapshot.evaluation.alive == 0 and balance(snapshot.evaluation.ledger) == (0, 0)
    assert {"trained", "stale"}.isdisjoint(snapshot.evaluation.ledger)
    assert set(walk.graded.values()) == {1} and walk.forgone > 0
    assert set(walk.committed.values()) == {1}
    assert set(walk.committed) <= walk.delivered
    assert snapshot.state.cursor > 30 and snapshot.state.batch == walk.batch > 10


def revive(walk: Walk) -> None:
    """Without those that were declared dead, and with as many as ever."""
    walk.engines = [e for e in walk.engines if _is_alive(walk.acts, e.boot)]
    while len(walk.engines) < 3:
        walk.new_engine()


def _is_alive(acts: Acts, boot: str) -> bool:
    return bool(acts.client.zscore(acts.keys.beat, boot))
