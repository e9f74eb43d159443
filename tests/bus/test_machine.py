"""Random schedules of all acts, against the model in `spec`: crashes, repeats, outages, rollbacks.

After each act the reply and everything that the server holds must be the model's. What no schedule
may break is asserted besides: no group is trained twice, none is lost, every token delivered is
proven, and what the ledger calls generated was delivered, once.

SLUICE_MACHINE=N runs N examples of other schedules than last time; SLUICE_TEST_SERVER names the
server's binary.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar, TypeVar

import pytest
import redis
from acts import Mortal
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from pair import SIZES, Pair, Saved
from players import Engine, Hand, Scorer, Trainer, made_by
from servers import Server, running
from spec.world import Group, Spans

from pipeline.bus.bus import Bus
from pipeline.bus.connection import connect

EXAMPLES, ACTS = int(os.environ.get("SLUICE_MACHINE", "45")), 120
RANDOM = "SLUICE_MACHINE" in os.environ
MOST_PLAYERS, HELD_OUT = 5, 2
# All differences of times lie far from what the rules compare them with.
PAUSES_MS = (20_000, 40_000, 60_000, 140_000, 160_000, 620_000)
OUTAGE_MS, DAY_MS = 180_000, 86_410_000
PIECE_BYTES = 150
"""So small that a member of five tokens does not fit into one piece."""
T = TypeVar("T")

Choice = tuple[int, int] | tuple[str, ...] | float
PICK, FEW, SOME, RARELY = (0, 99), (1, 4), (1, 9), 0.1

# How often, and what with: a range of numbers, words, or a chance.
SCHEDULE: dict[str, tuple[int, dict[str, Choice]]] = {
    "join_engine": (2, {}),
    "join_scorer": (1, {}),
    "bury": (3, {"who": PICK, "lives": 0.3}),
    "beat": (2, {"who": PICK}),
    "all_beat": (3, {}),
    "silence": (3, {"pause": (0, len(PAUSES_MS) - 1)}),
    "freeze_the_others": (1, {"who": PICK}),
    "outage": (1, {"days": RARELY}),
    "save_server": (2, {}),
    "restore_server": (2, {"again": ("trainer first", "engines", "nobody")}),
    "relapse": (
        2,
        {"who": PICK, "tokens": SOME, "again": ("trainer first", "engines", "nobody")},
    ),
    "admit": (4, {"number": (0, 4), "behind": RARELY}),
    "take": (10, {"who": PICK, "number": FEW, "lost": RARELY, "forgets": RARELY, "old": RARELY}),
    "work": (3, {"who": PICK, "tokens": SOME}),
    "save": (8, {"who": PICK, "hand": PICK, "m": PICK, "tokens": SOME}),
    "deliver": (16, {"who": PICK, "hand": PICK, "m": PICK, "tokens": SOME}),
    "deliver_mortally": (3, {"who": PICK, "hand": PICK, "m": PICK, "tokens": SOME, "dies": 0.5}),
    "fail": (1, {"who": PICK, "hand": PICK, "m": PICK, "whole": 0.3}),
    "give_back": (1, {"who": PICK, "keeps": 0.3}),
    "confirm": (5, {"who": PICK, "back": (0, 2), "wrong": RARELY}),
    "flip_unproven": (1, {"who": PICK}),
    "poison": (1, {"number": (1, 2), "scorers": 0.5}),
    "remark": (1, {"who": PICK, "what": ("rejected", "quarantined"), "really": 0.2}),
    "draw": (8, {"who": PICK, "number": FEW, "lost": RARELY}),
    "score": (12, {"who": PICK, "which": PICK, "error": RARELY}),
    "score_all": (3, {"who": PICK}),
    "let_go": (1, {"who": PICK, "which": PICK, "fails": 0.5}),
    "step": (8, {"number": FEW, "changed": (0, 4), "masked": (0, 3), "dies": RARELY}),
    "narrow": (2, {"window": (0, 12), "behind": (0, 2)}),
    "keep": (2, {"who": PICK, "odd": RARELY, "strays": 0.2}),
    "evaluate": (5, {"who": PICK, "number": FEW, "odd": (0, 9)}),
    "conclude": (4, {"odd": (0, 9)}),
    "forgo": (1, {"odd": (0, 3)}),
    "commit_again": (1, {"number": PICK}),
    "announce_next": (1, {}),
    "announce_oddly": (2, {"version": (-2, 2), "least": (-1, 3), "other": 0.2}),
    "refuse": (2, {"which": PICK, "number": (0, 9)}),
    "expire": (2, {}),
    "deadline": (2, {"awake": 0.5}),
    "new_epoch": (1, {}),
    "lose_steps": (2, {"steps": (0, 2)}),
    "finish": (1, {"sure": 0.02}),
    "repeat": (8, {"which": PICK}),
    "repeat_at_once": (4, {"which": PICK}),
}
_NAMES = [name for name, (weight, _) in SCHEDULE.items() for _ in range(weight)]

_runs = count()


def drawn(name: str, number: int) -> dict[str, Any]:
    """The arguments of an act; `number` is all that they depend on, so an act can be left out."""
    rng = random.Random(number)
    out: dict[str, Any] = {}
    for key, choice in SCHEDULE[name][1].items():
        if isinstance(choice, float):
            out[key] = rng.random() < choice
        elif isinstance(choice[0], int):
            out[key] = rng.randint(*choice)
        else:
            out[key] = rng.choice(choice)
    return out


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


class Machine:
    server: ClassVar[Server]
    done: ClassVar[int] = 0

    def __init__(self, *, release: int = 0) -> None:
        self.client = redis.Redis.from_url(self.server.url, protocol=2)
        self.run = f"m{os.getpid()}-{next(_runs)}"
        self.bus = Bus(connect(self.server.url), self.run, piece_bytes=PIECE_BYTES)
        self.mortal = Mortal(self.client, self.run, piece_bytes=PIECE_BYTES)
        self.pair = Pair(self.bus, self.client, self.run, replace(SIZES, release=release))
        self.pair.watch = self.watch
        self.trainer, self.engines, self.scorers = Trainer(), [], []
        self.number = self.admitted = 0
        self.saved: Saved | None = None
        self.delivered: dict[tuple[str, int, str], int] = {}

    engines: list[Engine]
    scorers: list[Scorer]

    @property
    def world(self) -> Any:
        return self.pair.world

    def begin(self) -> None:
        self.pair.beat(self.trainer.boot, "training")
        self.new_epoch()
        self.announce_next()
        for _ in range(2):
            self.join_engine()
            self.join_scorer()
        self.pair.admit(4, cursor=0)

    # Players come and go.

    def join_engine(self) -> None:
        self.number += 1
        engine = Engine(f"e{self.number}:1")
        self.engines = [*self.engines, engine][-MOST_PLAYERS:]
        self.pair.beat(engine.boot, "inference")
        self._confirm(engine)

    def join_scorer(self) -> None:
        self.number += 1
        scorer = Scorer(f"s{self.number}:1")
        self.scorers = [*self.scorers, scorer][-MOST_PLAYERS:]
        self.pair.beat(scorer.boot, "scoring")

    def bury(self, who: int, lives: bool) -> None:
        """Declared dead: mostly it is, and sometimes it goes on acting."""
        player = _pick([*self.engines, *self.scorers], who)
        if not player:
            return
        self.pair.bury(player.boot.partition(":")[0])
        if not lives:
            self.engines = [e for e in self.engines if e is not player]
            self.scorers = [s for s in self.scorers if s is not player]

    def beat(self, who: int) -> None:
        player = _pick([*self.engines, *self.scorers], who)
        if isinstance(player, Engine):
            self.pair.beat(player.boot, "inference", [h.group for h in player.hands])
        elif player:
            self.pair.beat(player.boot, "scoring")

    def all_beat(self) -> None:
        for engine in self.engines:
            self.pair.beat(engine.boot, "inference")
        for scorer in self.scorers:
            self.pair.beat(scorer.boot, "scoring")
        self.pair.beat(self.trainer.boot, "training")

    def silence(self, pause: int) -> None:
        self.pair.forward(PAUSES_MS[pause])

    def freeze_the_others(self, who: int) -> None:
        """All but one are silent for longer than a lease; it may reap."""
        player = _pick([*self.engines, *self.scorers], who)
        if not player:
            return
        service = "inference" if isinstance(player, Engine) else "scoring"
        for _ in range(5):
            self.pair.beat(player.boot, service)
            self.pair.beat(self.trainer.boot, "training")
            self.pair.forward(40_000)
        self.pair.beat(player.boot, service)
        self.pair.beat(self.trainer.boot, "training")

    def outage(self, days: bool) -> None:
        """The server dies and comes back from its log, and nobody has acted meanwhile."""
        self.server.restart()
        self.pair.compare("restart")
        self.pair.forward(DAY_MS if days else OUTAGE_MS)

    def save_server(self) -> None:
        self.saved = self.saved or self.pair.save_server()

    def restore_server(self, again: str) -> None:
        """It lost some seconds; engines hand in again what they did, and the trainer likewise."""
        if self.saved:
            deliveries = [call for call in self.pair.calls if call[0].startswith("deliver")]
            self.pair.restore_server(self.saved)
            self.saved = None
            if again == "trainer first":
                self._in_step()
            if again != "nobody":
                for call in deliveries:
                    self.pair.act(*call)

    def relapse(self, who: int, tokens: int, again: str) -> None:
        """The server loses what was admitted, made, scored and trained in the last seconds."""
        self.saved = self.pair.save_server()
        self.join_engine()
        self.work(-1, tokens)
        self.score_all(who)
        self.step(9, changed=1, masked=0, dies=False)
        self.restore_server(again)

    # Prompting.

    def admit(self, number: int, behind: bool) -> None:
        self.pair.admit(number, cursor=max(0, self.world.cursor - behind))

    # Engines.

    def take(self, who: int, number: int, lost: bool, forgets: bool, old: bool) -> None:
        if not (engine := _pick(self.engines, who)):
            return
        if forgets:
            engine.hands = engine.hands[1:]
        held = [hand.ticket for hand in engine.hands]
        runs = engine.version - old
        reply = self.pair.take(
            engine.boot,
            version=runs,
            held=held,
            count=number,
            pin=engine.pinned,
            pinned_count=number,
        )
        if reply != "gone" and not lost:
            engine.receive(reply[1])

    def save(self, who: int, hand: int, m: int, tokens: int) -> None:
        if found := self._work(who, hand, m):
            engine, work, member = found
            spans = engine.grow(work, member, tokens)
            self._note(engine, work, member, spans)
            self.pair.save(engine.boot, work.ticket, work.group, member, spans)

    def deliver(self, who: int, hand: int, m: int, tokens: int) -> None:
        if found := self._work(who, hand, m):
            self._deliver(*found, tokens)

    def deliver_all(self, who: int, tokens: int) -> None:
        if engine := _pick(self.engines, who):
            for hand in engine.hands:
                for m in list(hand.spans):
                    self._deliver(engine, hand, m, tokens)

    def _deliver(self, engine: Engine, hand: Hand, m: int, tokens: int) -> None:
        spans = engine.grow(hand, m, tokens)
        self._note(engine, hand, m, spans)
        g = self.world.groups.get(hand.group)
        is_repeat = g is not None and (m, engine.boot) in g.marks
        reply = self.pair.deliver(engine.boot, hand.ticket, hand.group, m, spans)
        if reply == "ok":
            assert is_repeat or self.world.is_proven(spans)
            hand.spans.pop(m)
            engine.hands = [h for h in engine.hands if h.spans]

    def deliver_mortally(self, who: int, hand: int, m: int, tokens: int, dies: bool) -> None:
        """Its pieces are there and its script has not run; it is gone then, or tries once more."""
        if not (found := self._work(who, hand, m)):
            return
        engine, work, member = found
        spans = engine.grow(work, member, tokens)
        self._note(engine, work, member, spans)
        where = (engine.boot, work.ticket, work.group, member)
        reply = self.pair.deliver_mortally(self.mortal, *where, spans)
        if dies and reply == "killed":
            self.engines = [e for e in self.engines if e is not engine]
        else:
            self._deliver(engine, work, member, who % 2)

    def fail(self, who: int, hand: int, m: int, whole: bool) -> None:
        if found := self._work(who, hand, m):
            engine, work, member = found
            member_or_all = None if whole else member
            self.pair.fail("prompts", engine.boot, work.ticket, work.group, member_or_all)

    def give_back(self, who: int, keeps: bool) -> None:
        if engine := _pick(self.engines, who):
            tickets = [hand.ticket for hand in engine.hands]
            if keeps:  # and somebody else's
                tickets += [ticket.number for ticket in self.world.prompts[:2]]
            self.pair.give_back("prompts", engine.boot, tickets)
            if not keeps:
                engine.hands = []

    def confirm(self, who: int, back: int, wrong: bool) -> None:
        if not (engine := _pick(self.engines, who)):
            return
        version = max(0, self.world.version - back)
        print_ = "wrong" if wrong else f"f{version}"
        if self.pair.confirm(engine.boot, version, print_) == "ok":
            engine.version = version

    def _confirm(self, engine: Engine) -> None:
        """The newest, as an engine does that starts; it keeps that, too."""
        if self.world.manifest is not None:
            version, _ = self.world.manifest
            if self.pair.confirm(engine.boot, version, f"f{version}") == "ok":
                engine.version = engine.pinned = version

    def keep(self, who: int, odd: bool, strays: bool) -> None:
        """The version that it runs, and not the former one; or it claims to keep another."""
        if engine := _pick(self.engines, who):
            engine.pinned = max(0, self.world.version - odd)
            engine.strays = strays

    # Evaluations.

    def evaluate(self, who: int, number: int, odd: int) -> None:
        """More groups of the one that goes on, or the first of what an engine keeps; or oddly."""
        standing, engine = self.world.evaluation, _pick(self.engines, who)
        kept = engine.pinned if engine and engine.pinned is not None else 0
        goes_on = standing.version >= 0 and odd != 1
        version, first = (standing.version, standing.cursor) if goes_on else (kept, 0)
        first = max(0, first - (odd == 2))
        count = max(0, min(number, HELD_OUT - first))
        self.pair.evaluate(count, version=version, size=HELD_OUT, first=first)

    def conclude(self, odd: int) -> None:
        version = self.world.evaluation.version - (odd == 1)
        self.pair.conclude(self.trainer.epoch, max(0, version))

    def forgo(self, odd: int) -> None:
        version = self.world.evaluation.version - (odd == 1)
        self.pair.forgo(self.trainer.epoch, max(0, version))

    def flip_unproven(self, who: int) -> None:
        """It samples under weights before their proof, or under ones that nobody can prove."""
        if engine := _pick(self.engines, who):
            engine.version = self.world.version + who % 2

    def poison(self, number: int, scorers: bool) -> None:
        """One after another takes the oldest work, alone or not, and dies with it."""
        for _ in range(4):
            if scorers:
                self.join_scorer()
                dead: Engine | Scorer = self.scorers.pop()
                self.pair.draw(dead.boot, held=[], count=number)
            else:
                self.join_engine()
                dead = self.engines.pop()
                self.pair.take(dead.boot, version=self.world.version, held=[], count=number)
            self.pair.bury(dead.boot.partition(":")[0])

    def remark(self, who: int, what: str, really: bool) -> None:
        engine = _pick(self.engines, who)
        if engine and (really or what == "rejected"):
            self.pair.remark(engine.boot, what)

    def work(self, who: int, tokens: int) -> None:
        """Admit, take and deliver, so that schedules get far."""
        if not self.engines:
            return
        self.pair.admit(4, cursor=self.world.cursor)
        self.evaluate(who, HELD_OUT, 0)
        self.take(who, 4, False, False, False)
        self.deliver_all(who, tokens)

    def _work(self, who: int, hand: int, m: int) -> tuple[Engine, Hand, int] | None:
        busy = [engine for engine in self.engines if engine.hands]
        if not (engine := _pick(busy, who)):
            return None
        work = engine.hands[hand % len(engine.hands)]
        return engine, work, sorted(work.spans)[m % len(work.spans)]

    def _note(self, engine: Engine, hand: Hand, m: int, spans: Spans) -> None:
        key = (hand.group, m, engine.boot)
        own = sum(s.tokens for s in spans if s.boot == engine.boot)
        self.delivered[key] = max(own, self.delivered.get(key, 0))

    # Scorers.

    def draw(self, who: int, number: int, lost: bool) -> None:
        if not (scorer := _pick(self.scorers, who)):
            return
        held = [ticket for ticket, _, _ in scorer.hands]
        reply = self.pair.draw(scorer.boot, held=held, count=number)
        if reply != "gone" and not lost:
            scorer.hands += [(ticket, group, m) for ticket, group, m, _ in reply[1]]

    def score(self, who: int, which: int, error: bool) -> None:
        scorer = _pick([s for s in self.scorers if s.hands], who)
        if scorer:
            hand = scorer.hands.pop(which % len(scorer.hands))
            self._score(scorer, hand, error=error)

    def score_all(self, who: int) -> None:
        if scorer := _pick(self.scorers, who):
            held = [ticket for ticket, _, _ in scorer.hands]
            reply = self.pair.draw(scorer.boot, held=held, count=9)
            if reply != "gone":
                scorer.hands += [(ticket, group, m) for ticket, group, m, _ in reply[1]]
            for hand in scorer.hands:
                self._score(scorer, hand)
            scorer.hands = []

    def _score(self, scorer: Scorer, hand: tuple[int, str, int], *, error: bool = False) -> None:
        ticket, group, m = hand
        self.pair.score(scorer.boot, ticket, group, m, error=error)

    def let_go(self, who: int, which: int, fails: bool) -> None:
        """A scorer dead-letters one completion, or hands all back."""
        scorer = _pick([s for s in self.scorers if s.hands], who)
        if scorer and fails:
            ticket, group, m = scorer.hands.pop(which % len(scorer.hands))
            self.pair.fail("completions", scorer.boot, ticket, group, m)
        elif scorer:
            tickets = [ticket for ticket, _, _ in scorer.hands]
            self.pair.give_back("completions", scorer.boot, tickets)
            scorer.hands = []

    # The trainer.

    def step(self, number: int, changed: int, masked: int, dies: bool) -> None:
        """Collect, record, commit, announce; or it dies between the record and the commit."""
        if not self._in_step():
            return
        ready = sorted(map(self.world.groups.get, self.world.ready), key=_age)
        names = [g.name for g in ready[:number]]
        if not names:
            return
        self._fetch(names)
        assert not [name for name in names if self.trainer.trained[name]], "trained twice"
        groups = [self.world.groups[name] for name in names]
        record = self.trainer.plan(groups, changed=changed > 0, masked=masked)
        if dies:
            self.new_epoch()
            return
        assert self._commit(len(self.trainer.records)) == "ok"
        if record.changed:
            self.announce_next()

    def _in_step(self) -> bool:
        """Whether the trainer leads and has committed all that is on its disk.

        A server that lost some of it is told, and hears of the versions again, in order.
        """
        collected = self.pair.collect(self.trainer.epoch)
        if collected == "FENCED":
            return False
        batch = collected[0]
        assert batch <= len(self.trainer.records)
        for number in range(batch + 1, len(self.trainer.records) + 1):
            assert self._commit(number) == "ok"
        for version, step in self.trainer.made:
            if version not in self.world.versions and version > self.world.version:
                self._announce(version, step=step, least=version)
        return True

    def _commit(self, number: int) -> Any:
        record = self.trainer.records[number - 1]
        return self.pair.commit(
            self.trainer.epoch, number, changed=record.changed, sums=record.sums
        )

    def _fetch(self, names: list[str]) -> None:
        """The cargo of ready groups is what was scored, and every span of it is proven."""
        for group in self.bus.groups.fetch(names):
            g = self.world.groups[group.prompt.group]
            scored = {m: p for m, p in enumerate(g.members) if p.status == "scored"}
            assert set(group.members) >= set(scored)
            for m, member in scored.items():
                completion = group.members[m].completion
                assert completion.tokens == member.tokens
                assert all((s.boot, s.version) in self.world.proofs for s in completion.spans)

    def commit_again(self, number: int) -> None:
        """A record of long ago, or one that is too new."""
        if records := self.trainer.records:
            at = number % len(records)
            sums = records[at].sums
            self.pair.commit(self.trainer.epoch, at + 1, changed=True, sums=sums)
        self.pair.commit(self.trainer.epoch, self.world.batch + 999, changed=True, sums={})

    def announce_next(self) -> None:
        """A version above every one that was ever announced."""
        if self._in_step():
            version = max([-1, *(v for v, _ in self.trainer.made)]) + 1
            version = max(version, self.world.version + 1)
            self._announce(version, step=self.world.step, least=version)
            if (version, self.world.step) not in self.trainer.made and version in self.made_now:
                self.trainer.made.append((version, self.world.step))

    @property
    def made_now(self) -> dict[int, tuple[int, str]]:
        versions: dict[int, tuple[int, str]] = self.world.versions
        return versions

    def narrow(self, window: int, behind: int) -> None:
        """After a step; and what was said after an earlier one comes late."""
        self.pair.narrow(self.trainer.epoch, self.world.batch, window)
        if 0 < behind <= self.world.batch:
            self.pair.narrow(self.trainer.epoch, self.world.batch - behind, 12 - window)

    def announce_oddly(self, version: int, least: int, other: bool) -> None:
        """Numbers that were used, are too low, skip one, or are below what the trainer knows of."""
        number, wanted = (max(0, self.world.version + n) for n in (version, least))
        is_known = number in self.world.versions
        step = dict(self.trainer.made).get(number, self.world.step)
        print_ = "other" if other and is_known else f"f{number}"
        said = self.pair.announce(
            self.trainer.epoch, number, least=wanted, step=step, print_=print_
        )
        if said == "ok" and not is_known:
            self.trainer.made.append((number, step))

    def _announce(self, version: int, *, step: int, least: int) -> None:
        self.pair.announce(
            self.trainer.epoch, version, least=least, step=step, print_=f"f{version}"
        )

    def refuse(self, which: int, number: int) -> None:
        group = _pick(self.world.alive, which)
        if group and not self.trainer.trained[group.name]:
            tokens = sum(member.tokens for member in group.members)
            held = sum(member.is_held for member in group.members)
            sums = {"stale": (held, max(0, tokens - number))}
            self.pair.refuse(self.trainer.epoch, group.name, sums)

    def expire(self) -> None:
        self.pair.expire(self.trainer.boot, len(self.trainer.records))

    def deadline(self, awake: bool) -> None:
        """It passes for all; only a trainer that was awake meanwhile may say so."""
        self.pair.forward(PAUSES_MS[-1])
        for _ in range(5 * awake):
            self.pair.beat(self.trainer.boot, "training")
            self.pair.forward(40_000)
        self.pair.beat(self.trainer.boot, "training")
        self.expire()

    def new_epoch(self) -> None:
        """Another process trains, from the same disk; what the former one says is refused."""
        former = self.trainer.epoch
        self.trainer.epoch = max(former, self.world.epoch) + 1
        assert self.pair.lead(self.trainer.epoch, self.trainer.boot) == "ok"
        if former:
            assert self.pair.lead(former, "training:0") == "FENCED"
            assert self.pair.collect(former) == "FENCED"
            assert self.pair.commit(former, 1, changed=True, sums={}) == "FENCED"

    def lose_steps(self, steps: int) -> None:
        """The trainer's disk has less than the run: it goes on from an earlier step."""
        if self._in_step():
            self.pair.rollback(self.trainer.epoch, max(0, self.world.step - steps))
            self.trainer.made = [m for m in self.trainer.made if m[0] in self.made_now]
            self.announce_next()

    def finish(self, sure: bool) -> None:
        if sure:
            self.pair.finish(self.trainer.epoch)

    # Whatever happens.

    def repeat(self, which: int) -> None:
        self.pair.repeat(which)

    def repeat_at_once(self, which: int) -> None:
        self.pair.repeat(-1 - which % 3)

    def watch(self) -> None:
        """After every act: what the ledger calls generated was delivered or saved, once."""
        self.admitted = max(self.admitted, self.world.cursor)
        held_out = self.world.evaluation.ledger
        assert {"trained", "stale", "cut", "surplus"}.isdisjoint(fate for fate, _ in held_out)
        assert made_by(self.world) + held_out["generated", "members"] <= len(self.delivered)
        tokens = self.world.ledger["generated", "tokens"] + held_out["generated", "tokens"]
        assert tokens <= sum(self.delivered.values())
        if self.pair.acts % 5 == 0:
            self.pair.audit()

    def run_all(self, program: list[tuple[str, int]]) -> None:
        try:
            self.begin()
            for name, number in program:
                getattr(self, name)(**drawn(name, number))
            self.drain()
        finally:
            type(self).done += self.pair.acts
            for line in self.pair.told[-60:]:
                note(line)
            self.bus.purge()
            self.bus.close()
            self.client.close()

    def drain(self) -> None:
        """All die; others come, and bring every group that was ever admitted to its end."""
        for player in [*self.engines, *self.scorers]:
            self.pair.bury(player.boot.partition(":")[0])
        self.engines, self.scorers = [], []
        for _ in range(15):
            is_over = self.world.stop or self.world.cursor >= self.admitted
            if not self.world.alive and not self.world.held_out and is_over:
                break
            self._drain_some()
        if not self.world.stop:
            self.pair.forgo(self.trainer.epoch, max(0, self.world.evaluation.version))
        assert self.world.stop or self.world.cursor >= self.admitted
        assert not self.world.alive, f"nobody can bring these to their end: {self.world.alive}"
        assert self.world.evaluation.version < 0 and not self.world.held_out
        self.pair.audit()
        for ledger in (self.world.ledger, self.world.evaluation.ledger):
            for what in ("members", "tokens"):
                ends = [(fate, n) for (fate, of), n in ledger.items() if of == what]
                fates = sum(n for fate, n in ends if fate != "generated")
                assert ledger["generated", what] == fates

    def _drain_some(self) -> None:
        if not self.trainer.epoch or not self._in_step():
            self.new_epoch()
        self.announce_next()
        if self.world.cursor < self.admitted:
            self.pair.admit(2, cursor=self.world.cursor)
        self.join_engine()
        self.join_scorer()
        self._grow_old()
        engine = self.engines[-1]
        if (pin := self.world.evaluation.version) >= 0:
            self.pair.confirm(engine.boot, pin, f"f{pin}")
        while reply := self.pair.take(
            engine.boot,
            version=engine.version,
            held=[h.ticket for h in engine.hands],
            count=9,
            pin=pin,
            pinned_count=9,
        )[1]:
            engine.receive(reply)
            for hand in list(engine.hands):
                for m in list(hand.spans):
                    self._deliver(engine, hand, m, 3)
        self.score_all(-1)
        self.conclude(0)
        self.step(9, changed=1, masked=0, dies=False)

    def _grow_old(self) -> None:
        """A lease goes by in which only these beat: what others hold is theirs."""
        for _ in range(5):
            self.all_beat()
            self.pair.forward(40_000)
        self.all_beat()


def _age(g: Group) -> tuple[int, int]:
    return g.start or 0, g.seq


def _pick(pool: list[T], number: int) -> T | None:
    return pool[number % len(pool)] if pool else None


PROGRAMS = st.lists(
    st.tuples(st.sampled_from(_NAMES), st.integers(0, 9999)), min_size=ACTS // 2, max_size=ACTS
)


@pytest.mark.timeout(36_000 if RANDOM else 300)
def test_no_schedule_leaves_the_model(server: Server) -> None:
    Machine.server, Machine.done = server, 0

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=not RANDOM,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(program=PROGRAMS)
    def walk(program: list[tuple[str, int]]) -> None:
        release = 2 * (program[0][1] % 2)  # of 3: every second run over-samples
        Machine(release=release).run_all(program)

    walk()
    print(f"{Machine.done} acts")
    assert Machine.done > 40 * EXAMPLES
