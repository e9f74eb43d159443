"""A run with its four kinds of process, played by hand: every act is a real one of the bus.

Time passes by moving what the server wrote down about a boot, so that no test has to sleep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis.client import Pipeline

from pipeline.bus.bus import Bus
from pipeline.bus.groups import Ready
from pipeline.bus.keys import Keys
from pipeline.bus.leases import Answerable, Lease
from pipeline.ledger import Fates, Sum
from pipeline.messages import Beat, Completion, Manifest, Prompt, Sampling, Score, Span, Work

TRAINER = "training-0:t"
Trip = Sequence[Sequence[Any]]


class Stutterer(redis.Redis):
    """A client whose every request arrives twice; it hears the first reply."""

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        return StutteringPipeline(
            self.connection_pool, self.response_callbacks, transaction, shard_hint
        )


class StutteringPipeline(Pipeline):
    def execute(self, raise_on_error: bool = True) -> list[object]:
        commands = list(self.command_stack)
        first = super().execute(raise_on_error)
        self.command_stack = commands
        super().execute(raise_on_error)
        return first


class Spy(redis.Redis):
    """Tells `on_trip` of every round trip before it is made: the commands that it carries."""

    def __init__(self, client: redis.Redis, on_trip: Callable[[Trip], None]) -> None:
        super().__init__(connection_pool=client.connection_pool)
        self.on_trip = on_trip

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        pipe = SpyPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipe.on_trip = self.on_trip
        return pipe


class SpyPipeline(Pipeline):
    on_trip: Callable[[Trip], None]

    def execute(self, raise_on_error: bool = True) -> list[object]:
        self.on_trip([args for args, _ in self.command_stack])
        return super().execute(raise_on_error)


class Killed(BaseException):
    """The process that acts is killed."""


class Mortal:
    """A bus that is killed between the pieces that it sent and the script that they are for."""

    def __init__(self, client: redis.Redis, run: str, *, piece_bytes: int) -> None:
        self.bus = Bus(Spy(client, self._on_trip), run, piece_bytes=piece_bytes)
        self.is_killed = False
        self._has_sent = False

    def _on_trip(self, commands: Trip) -> None:
        self.is_killed = self._has_sent and str(commands[0][0]).startswith("EVALSHA")
        self._has_sent = commands[0][0] == "SET"
        if self.is_killed:
            raise Killed


class Acts:
    def __init__(
        self,
        bus: Bus,
        client: redis.Redis,
        run: str,
        *,
        window: int = 8,
        per_step: int = 2,
        lag_max: int = 2,
        members: int = 2,
        enough: int | None = None,
    ) -> None:
        self.bus, self.client, self.keys, self.members = bus, client, Keys(run), members
        bus.open(
            {"model": "tiny"},
            window=window,
            per_step=per_step,
            lag_max=lag_max,
            members=members,
            enough=enough,
        )
        bus.beat(Beat(service="training", instance="training-0", boot=TRAINER))
        bus.groups.lead(1, TRAINER)
        self.announce(0, step=0)

    def announce(self, version: int, *, step: int) -> None:
        self.bus.versions.announce(
            Manifest(
                version=version, step=step, epoch=1, fingerprint=f"f{version}", location="here"
            ),
            min_version=version,
        )

    def beat(self, boot: str, service: str = "inference") -> None:
        self.bus.beat(Beat(service=service, instance=boot.partition(":")[0], boot=boot))

    def engine(self, boot: str, version: int = 0) -> str:
        self.beat(boot)
        assert self.bus.versions.confirm(boot, version, f"f{version}") == "ok"
        return boot

    def scorer(self, boot: str) -> str:
        self.beat(boot, "scoring")
        return boot

    def admit(self, count: int, *, eof: bool = False) -> str:
        cursor = self.bus.state().cursor
        prompts = [self.prompt(seq) for seq in range(cursor, cursor + count)]
        return self.bus.prompts.admit(prompts, cursor=cursor, next_cursor=cursor + count, eof=eof)

    def prompt(self, seq: int) -> Prompt:
        return Prompt(
            group=f"g{seq}", seq=seq, ids=b"\1\0\0\0", members=self.members, sampling=Sampling()
        )

    def take(
        self, boot: str, count: int = 1, *, version: int = 0, held: Sequence[Lease[Work]] = ()
    ) -> list[Lease[Work]]:
        return self.taken(boot, count, version=version, held=held)[1]

    def taken(
        self, boot: str, count: int = 1, *, version: int = 0, held: Sequence[Lease[Work]] = ()
    ) -> tuple[str, list[Lease[Work]]]:
        taken = self.bus.prompts.take(
            boot, version=version, held=[lease.entry for lease in held], count=count
        )
        return taken.status, taken.leases

    def deliver(self, boot: str, lease: Lease[Work], member: int, tokens: int = 5) -> str:
        done = completion(lease.group, member, Span(0, tokens, boot))
        return self.bus.prompts.deliver(boot, [(lease, done)])[0]

    def save(self, boot: str, lease: Lease[Work], chunk: Completion) -> str:
        return self.bus.prompts.save_all(boot, [(lease, chunk)])[0]

    def deliver_all(self, boot: str, leases: Sequence[Lease[Work]], tokens: int = 5) -> None:
        for lease in leases:
            for m in lease.work.todo:
                assert self.deliver(boot, lease, m, tokens) == "ok"

    def draw(
        self, boot: str, count: int = 100, *, held: Sequence[Lease[Answerable]] = ()
    ) -> list[Lease[Answerable]]:
        return self.bus.completions.draw(boot, held=[h.entry for h in held], count=count)

    def score(self, boot: str, leases: Sequence[Lease[Answerable]], **fields: str) -> list[str]:
        reward = None if "error" in fields else 1.0
        return self.bus.completions.score(
            boot, [(lease, Score(reward=reward, **fields)) for lease in leases]
        )

    def ready(self) -> Ready:
        return self.bus.groups.collect(1)

    def make_ready(self, count: int, *, engine: str = "e:1", scorer: str = "s:1") -> list[str]:
        """So many whole groups of 5 tokens a member, waiting for training."""
        self.engine(engine), self.scorer(scorer)
        assert self.admit(count) == "ok"
        leases = self.take(engine, count)
        self.deliver_all(engine, leases)
        assert set(self.score(scorer, self.draw(scorer))) == {"ok"}
        return [lease.group for lease in leases]

    def commit(self, batch: int, groups: Sequence[str], *, changed: bool = True) -> str:
        fates = {g: {"trained": Sum(self.members, 5 * self.members)} for g in groups}
        return self.bus.groups.commit(1, batch=batch, changed=changed, fates=fates)

    def bury(self, boot: str) -> None:
        self.bus.bury(boot.partition(":")[0])

    def silence(self, boot: str, seconds: float) -> None:
        """The boot's last beat was so long ago."""
        then = self._now_ms() - round(1000 * seconds)
        self.client.zadd(self.keys.beat, {boot: then})
        self.client.hset(self.keys.who, f"{boot}|seen", str(then))

    def wake(self, boot: str, seconds: float) -> None:
        """The boot beats now, and has done so without a gap for so long."""
        self.client.hset(
            self.keys.who, f"{boot}|since", str(self._now_ms() - round(1000 * seconds))
        )

    def overdue(self, group: str) -> None:
        self.client.zadd(self.keys.due, {group: self._now_ms() - 1})

    def ledger(self) -> Fates:
        return self.bus.snapshot().ledger

    def letters(self) -> list[dict[str, str]]:
        return [
            {k.decode(): v.decode() for k, v in fields.items()}
            for _, fields in self.client.xrange(self.keys.dead)
        ]

    def _now_ms(self) -> int:
        seconds, micros = self.client.time()
        return seconds * 1000 + micros // 1000


def completion(group: str, member: int, *spans: Span, finish: bool = True) -> Completion:
    tokens = sum(span.tokens for span in spans)
    return Completion(
        group=group,
        member=member,
        ids=b"\7\0\0\0" * tokens,
        logprobs=b"\0\0\0\0" * tokens,
        spans=spans,
        finish="stop" if finish else None,
    )


def prefix(group: str, member: int, *spans: Span) -> Completion:
    return completion(group, member, *spans, finish=False)


def balance(ledger: Fates) -> tuple[int, int]:
    """Members and tokens that have no fate."""
    members, tokens = ledger.get("generated", Sum(0, 0))
    for fate, part in ledger.items():
        if fate != "generated":
            members, tokens = members - part.members, tokens - part.tokens
    return members, tokens
