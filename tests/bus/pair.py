"""The real bus and the model of the protocol, driven in step: after every act they are equal.

What an act said, and all that the server holds then, must be what the model says.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import acts
import redis
import seen
from clock import Clock
from msgspec import structs
from spec import evaluation, leases, trainer, work
from spec.groups import Sums
from spec.world import Settings, Span, Spans, World

from pipeline import messages
from pipeline.bus.bus import Bus
from pipeline.bus.evaluations import group_name
from pipeline.bus.keys import Keys
from pipeline.bus.leases import Lease
from pipeline.errors import Fenced, Gone, SluiceError
from pipeline.ledger import Sum

SIZES = Settings(
    window=9, per_step=3, lag_max=2, members=3, enough=2, lease_ms=150_000, deadline_ms=610_000
)
KEPT_CALLS = 60


@dataclass
class Saved:
    """A server's data at one moment, and what the model was then."""

    keys: dict[bytes, tuple[bytes, int]]
    world: World


Call = tuple[str, Callable[[], Any], Callable[[World], Any]]


class Pair:
    def __init__(self, bus: Bus, client: redis.Redis, run: str, sizes: Settings = SIZES) -> None:
        self.bus, self.client, self.keys = bus, client, Keys(run)
        self.world, self.clock = World(sizes), Clock(client, self.keys)
        self.entries: dict[int, str] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        self.names: set[str] = set()
        self.versions = 0
        self.calls: list[Call] = []
        self.acts = 0
        self.led = (0, "")
        self.sizes = sizes
        self.told: list[str] = []
        self.watch: Callable[[], None] = lambda: None
        self.open()

    def open(self) -> None:
        s = self.sizes
        self.bus.open(
            {"model": "tiny", "groups.release": str(s.release)}, window=s.window,
            per_step=s.per_step, lag_max=s.lag_max,
            members=s.members, enough=s.enough, lease_seconds=s.lease_ms / 1000,
            group_deadline_seconds=s.deadline_ms / 1000,
        )  # fmt: skip
        self.compare("open")

    # How an act is done.

    def act(self, name: str, real: Callable[[], Any], model: Callable[[World], Any]) -> Any:
        self.calls = [*self.calls[-KEPT_CALLS:], (name, real, model)]
        return self._act(name, real, model)

    def repeat(self, number: int) -> None:
        """A former call, with the same arguments, however late."""
        if self.calls:
            name, real, model = self.calls[number % len(self.calls)]
            self._act(f"late {name}", real, model)

    def _act(self, name: str, real: Callable[[], Any], model: Callable[[World], Any]) -> Any:
        self.acts += 1
        self.told.append(name)
        said, wanted = _said(real), model(self.world)
        assert said == wanted, f"{name} said {said!r} and not {wanted!r}"
        self.told[-1] += f": {said}"
        self.compare(name)
        self.watch()
        return said

    def compare(self, name: str) -> None:
        self.names |= set(self.world.groups)
        self.versions = max(self.versions, self.world.version + 2)
        look, raw = seen.of_server(
            self.client, self.keys, sorted(self.names), versions=self.versions
        )
        wanted = seen.of_world(self.world)
        for what, value in wanted.items():
            assert look[what] == value, f"after {name}: {what} {_difference(look[what], value)}"
        stay, claimed = seen.pieces(self.client, self.keys, raw["groups"])
        assert stay == claimed, f"after {name}: {stay - claimed} stray, {claimed - stay} lost"
        for stream in ("prompts", "completions", "eval:prompts"):
            lane, _, desk = stream.rpartition(":")
            for ticket, (entry, _) in zip(self.world.stream(stream), raw[stream], strict=True):
                name = f"{lane}:{entry.decode()}" if lane else entry.decode()
                known = self.entries.setdefault(ticket.number, name)
                assert known == name, "a ticket has changed its id"
                self.numbers[desk, known] = ticket.number

    # The server's fortunes.

    def forward(self, ms: int) -> None:
        self.clock.forward(self.world, ms)
        self.compare("time")

    def save_server(self) -> Saved:
        keys = list(self.client.scan_iter(self.keys.prefix + "*"))
        with self.client.pipeline() as pipe:
            for key in keys:
                pipe.dump(key), pipe.pttl(key)
            found = pipe.execute()
        dumps = zip(found[::2], found[1::2], strict=True)
        return Saved(dict(zip(keys, dumps, strict=True)), copy.deepcopy(self.world))

    def restore_server(self, saved: Saved) -> None:
        """The server is what it was; the time is not."""
        old, now = copy.deepcopy(saved.world), self.world.now
        old.num_tickets = max(old.num_tickets, self.world.num_tickets)
        with self.client.pipeline() as pipe:
            for key in list(self.client.scan_iter(self.keys.prefix + "*")):
                pipe.delete(key)
            for key, (dump, ttl) in saved.keys.items():
                pipe.restore(key, max(0, ttl), dump)
            pipe.execute()
        known = set(old.groups)
        old.pass_time(now - old.now)
        self.world = old
        self.clock.write(self.world, known)
        self.compare("restore")

    # The acts.

    def beat(self, boot: str, service: str, held: Sequence[str] = ()) -> Any:
        instance = boot.partition(":")[0]
        beat = messages.Beat(service=service, instance=instance, boot=boot)
        fixed = list(held)
        return self.act(
            f"beat {boot}",
            lambda: list(self.bus.beat(beat, fixed).closed),
            lambda w: leases.beat(w, boot, service, fixed),
        )

    def bury(self, instance: str) -> Any:
        return self.act(
            f"bury {instance}",
            lambda: self.bus.bury(instance),
            lambda w: leases.bury(w, instance),
        )

    def admit(self, count: int, *, cursor: int) -> Any:
        names = [(f"g{seq}", seq) for seq in range(cursor, cursor + count)]
        prompts = [self._prompt(*name) for name in names]
        return self.act(
            f"admit {count} at {cursor}",
            lambda: self.bus.prompts.admit(
                prompts, cursor=cursor, next_cursor=cursor + count, eof=False
            ),
            lambda w: trainer.admit(w, names, cursor=cursor, next_cursor=cursor + count),
        )

    def _prompt(self, name: str, seq: int) -> messages.Prompt:
        return messages.Prompt(
            group=name, seq=seq, ids=b"\1\0\0\0", members=self.sizes.members,
            sampling=messages.Sampling(),
        )  # fmt: skip

    def evaluate(self, count: int, *, version: int, size: int, first: int) -> Any:
        names = [
            (group_name(version, n), n, 1 + n % self.sizes.members)
            for n in range(first, first + count)
        ]
        prompts = [
            structs.replace(self._prompt(name, n), members=members, pin=version)
            for name, n, members in names
        ]
        return self.act(
            f"evaluate v{version} {count} at {first} of {size}",
            lambda: self.bus.evaluations.admit(prompts, version=version, size=size, first=first),
            lambda w: evaluation.evaluate(w, names, version=version, size=size, first=first),
        )

    def conclude(self, epoch: int, version: int) -> Any:
        return self.act(
            f"conclude {epoch} v{version}",
            lambda: self.bus.evaluations.conclude(epoch, version),
            self._leading(epoch, lambda w: evaluation.conclude(w, epoch, version)),
        )

    def forgo(self, epoch: int, version: int) -> Any:
        return self.act(
            f"forgo {epoch} v{version}",
            lambda: self.bus.evaluations.forgo(epoch, version),
            self._leading(epoch, lambda w: _silent(evaluation.forgo(w, epoch, version))),
        )

    def narrow(self, epoch: int, batch: int, window: int) -> Any:
        return self.act(
            f"narrow {epoch} {batch} to {window}",
            lambda: self.bus.groups.narrow(epoch, batch=batch, window=window),
            self._leading(
                epoch, lambda w: _silent(trainer.narrow(w, epoch, batch=batch, window=window))
            ),
        )

    def take(
        self,
        boot: str,
        *,
        version: int,
        held: Sequence[int],
        count: int,
        pin: int | None = None,
        pinned_count: int = 0,
    ) -> Any:
        numbers, kept = list(held), {"pin": pin, "pinned_count": pinned_count}

        def real() -> tuple[str, list[work.Handed]]:
            entries = [self.entries[n] for n in numbers]
            taken = self.bus.prompts.take(boot, version=version, held=entries, count=count, **kept)
            return taken.status, [self._handed(lease) for lease in taken.leases]

        return self.act(
            f"take {boot} v{version} held={numbers} count={count} {kept}",
            real,
            lambda w: _or_gone(
                work.take(w, boot, version=version, held=numbers, count=count, **kept)
            ),
        )

    def _handed(self, lease: Lease[messages.Work]) -> work.Handed:
        prefixes = {m: _model_spans(p.spans) for m, p in lease.work.prefixes.items()}
        number = self.numbers["prompts", lease.entry]
        return number, lease.group, lease.strikes, list(lease.work.todo), prefixes

    def _lease(self, ticket: int, group: str, m: int | None = None) -> Lease[Any]:
        return Lease(self.entries[ticket], group, None, 0, m)

    def save(self, boot: str, ticket: int, group: str, m: int, spans: Spans) -> Any:
        lease, chunk = self._lease(ticket, group), acts.prefix(group, m, *_wire(spans))
        return self.act(
            f"save {boot} {group}.{m} {spans}",
            lambda: self.bus.prompts.save_all(boot, [(lease, chunk)])[0],
            lambda w: work.save(w, boot, group, m, ticket=ticket, prefix=spans),
        )

    def deliver(self, boot: str, ticket: int, group: str, m: int, spans: Spans) -> Any:
        lease, done = self._lease(ticket, group), acts.completion(group, m, *_wire(spans))
        return self.act(
            f"deliver {boot} {group}.{m} {spans}",
            lambda: self.bus.prompts.deliver(boot, [(lease, done)])[0],
            lambda w: work.deliver(w, boot, group, m, spans),
        )

    def deliver_mortally(
        self, by: acts.Mortal, boot: str, ticket: int, group: str, m: int, spans: Spans
    ) -> Any:
        """It is killed before its script, if that needs pieces: then nothing has happened."""
        lease, done = self._lease(ticket, group), acts.completion(group, m, *_wire(spans))
        return self.act(
            f"deliver mortally {boot} {group}.{m} {spans}",
            lambda: by.bus.prompts.deliver(boot, [(lease, done)])[0],
            lambda w: "killed" if by.is_killed else work.deliver(w, boot, group, m, spans),
        )

    def fail(self, stream: str, boot: str, ticket: int, group: str, m: int | None) -> Any:
        lease = self._lease(ticket, group, m)
        desk = self.bus.prompts if stream == "prompts" else self.bus.completions

        def real() -> None:
            if stream == "prompts":
                self.bus.prompts.fail(boot, lease, "why", m)
            else:
                self.bus.completions.fail(boot, lease, "why")

        assert desk
        return self.act(
            f"fail {stream} {boot} {group}.{m}",
            real,
            lambda w: _silent(
                work.fail(w, stream, boot, ticket=ticket, group=group, m=m, reason="why")
            ),
        )

    def give_back(self, stream: str, boot: str, tickets: Sequence[int]) -> Any:
        numbers = list(tickets)
        held = [self._lease(n, "") for n in numbers]
        desk = self.bus.prompts if stream == "prompts" else self.bus.completions
        return self.act(
            f"give back {stream} {boot} {numbers}",
            lambda: desk.give_back(boot, held),
            lambda w: leases.give_back(w, stream, boot, numbers),
        )

    def draw(self, boot: str, *, held: Sequence[int], count: int) -> Any:
        numbers = list(held)

        def real() -> tuple[str, list[tuple[int, str, int, int]]]:
            entries = [self.entries[n] for n in numbers]
            drawn = self.bus.completions.draw(boot, held=entries, count=count)
            rows = [
                (self.numbers["completions", d.entry], d.group, d.member or 0, d.strikes)
                for d in drawn
            ]
            return "ok", rows

        return self.act(
            f"draw {boot} held={numbers} count={count}",
            real,
            lambda w: _or_gone(work.draw(w, boot, held=numbers, count=count)),
        )

    def score(self, boot: str, ticket: int, group: str, m: int, *, error: bool) -> Any:
        lease, outcome = self._lease(ticket, group, m), m / 4
        score = messages.Score(
            reward=None if error else 1.0, outcome=outcome, error="why" if error else None
        )
        return self.act(
            f"score {boot} {group}.{m} error={error}",
            lambda: self.bus.completions.score(boot, [(lease, score)])[0],
            lambda w: work.score(
                w, boot, ticket=ticket, group=group, m=m, error=error, outcome=outcome
            ),
        )

    # The trainer's.

    def lead(self, epoch: int, boot: str) -> Any:
        said = self.act(
            f"lead {epoch}",
            lambda: _ok(self.bus.groups.lead(epoch, boot)),
            lambda w: self._model_lead(w, epoch, boot),
        )
        return said

    def _model_lead(self, w: World, epoch: int, boot: str) -> str:
        said = trainer.lead(w, epoch, boot)
        if said == "ok":
            self.led = (epoch, boot)
        return said

    def _leading(self, epoch: int, act: Callable[[World], Any]) -> Callable[[World], Any]:
        """A server that has forgotten who leads is told by whoever led last."""

        def model(w: World) -> Any:
            if w.epoch < epoch:
                if epoch != self.led[0]:
                    return "refused"
                trainer.lead(w, *self.led)
            return act(w)

        return model

    def collect(self, epoch: int) -> Any:
        def real() -> tuple[int, int, list[tuple[str, int, int]]]:
            ready = self.bus.groups.collect(epoch)
            return ready.batch, ready.alive, [(t.group, t.seq, t.start_step) for t in ready.groups]

        return self.act(
            f"collect {epoch}", real, self._leading(epoch, lambda w: trainer.collect(w, epoch))
        )

    def refuse(self, epoch: int, group: str, sums: Sums) -> Any:
        return self.act(
            f"refuse {group}",
            lambda: self.bus.groups.refuse(epoch, group, _fates(sums)),
            self._leading(epoch, lambda w: _silent(trainer.refuse(w, epoch, group, sums))),
        )

    def commit(self, epoch: int, batch: int, *, changed: bool, sums: Mapping[str, Sums]) -> Any:
        fates = {group: _fates(parts) for group, parts in sums.items()}
        return self.act(
            f"commit {epoch} {batch} {sums}",
            lambda: self.bus.groups.commit(epoch, batch=batch, changed=changed, fates=fates),
            self._leading(
                epoch,
                lambda w: trainer.commit(w, epoch, batch=batch, changed=changed, sums=sums),
            ),
        )

    def announce(self, epoch: int, version: int, *, least: int, step: int, print_: str) -> Any:
        manifest = messages.Manifest(
            version=version, step=step, epoch=epoch, fingerprint=print_, location=f"e{epoch}"
        )
        said = self.act(
            f"announce {epoch} v{version} >= {least} step={step} {print_}",
            lambda: _ok(self.bus.versions.announce(manifest, min_version=least)),
            self._leading(
                epoch,
                lambda w: _refused(
                    trainer.announce(
                        w, epoch, version, min_version=least, step=step, fingerprint=print_
                    )
                ),
            ),
        )
        newest = self.bus.versions.newest()
        assert (newest and (newest.version, newest.epoch)) == self.world.manifest
        steps = {v: made[0] for v, made in self.world.versions.items()}
        assert self.bus.versions.steps() == steps
        return said

    def rollback(self, epoch: int, step: int) -> Any:
        return self.act(
            f"rollback {epoch} to {step}",
            lambda: self.bus.groups.rollback(epoch, step),
            self._leading(epoch, lambda w: _silent(trainer.rollback(w, epoch, step))),
        )

    def finish(self, epoch: int) -> Any:
        return self.act(
            f"finish {epoch}",
            lambda: self.bus.groups.finish(epoch, "done", "why"),
            self._leading(epoch, lambda w: _silent(trainer.finish(w, epoch, "done", "why"))),
        )

    def expire(self, boot: str, batch: int) -> Any:
        return self.act(
            f"expire {boot}",
            lambda: self.bus.groups.expire(boot, batch=batch),
            lambda w: trainer.expire(w, boot, batch),
        )

    def confirm(self, boot: str, version: int, print_: str) -> Any:
        return self.act(
            f"confirm {boot} v{version} {print_}",
            lambda: self.bus.versions.confirm(boot, version, print_),
            lambda w: _refused(trainer.confirm(w, boot, version, print_)),
        )

    def remark(self, boot: str, what: str) -> Any:
        def real() -> str:
            if what == "rejected":
                self.bus.versions.reject(boot, 1, "why")
            else:
                self.bus.versions.quarantine(boot, "why")
            return "ok"

        return self.act(f"{what} {boot}", real, lambda w: trainer.remark(w, boot, what, "why"))

    def audit(self) -> None:
        """The server's own audit finds no fault, and counts what the model counts."""
        w, audit = self.world, self.bus.audit()
        assert audit.faults == ()
        places = audit.places
        todo = [g for g in w.alive if g.state == "open" and g.todo]
        assert (places.prompts, places.groups) == (len(todo), len(w.ready))
        assert places.alive == audit.alive == len(w.alive) <= w.settings.window
        graded = self.bus.evaluations.graded()
        assert graded.outcomes == w.evaluation.outcomes
        assert set(graded.boots) == w.evaluation.boots
        members = [m for g in w.alive for m in g.members]
        assert audit.held == (sum(m.is_held for m in members), sum(m.tokens for m in members))


def _difference(found: Any, wanted: Any) -> str:
    if isinstance(found, dict):
        keys = [k for k in {**found, **wanted} if found.get(k) != wanted.get(k)]
        found, wanted = {k: found.get(k) for k in keys}, {k: wanted.get(k) for k in keys}
    return f"is\n{found}\nand not\n{wanted}"


def _said(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except acts.Killed:
        return "killed"
    except Gone:
        return "gone"
    except Fenced:
        return "FENCED"
    except SluiceError:
        return "refused"


def _or_gone(reply: tuple[str, Any]) -> Any:
    return "gone" if reply[0] == "gone" else reply


def _silent(status: str) -> str | None:
    """Of these acts the caller hears nothing, unless it is fenced."""
    return status if status in ("FENCED", "refused") else None


def _refused(status: str) -> str:
    return "refused" if status in ("taken", "old", "unknown") else status


def _ok(_: None) -> str:
    return "ok"


def _wire(spans: Spans) -> list[messages.Span]:
    return [messages.Span(s.version, s.tokens, s.boot) for s in spans]


def _model_spans(spans: Sequence[messages.Span]) -> Spans:
    return tuple(Span(s.version, s.tokens, s.boot) for s in spans)


def _fates(sums: Sums) -> dict[str, Sum]:
    return {fate: Sum(*parts) for fate, parts in sums.items()}
