"""The loop's side of the endpoint: guests' sequences beside the run's own, on the same engine.

They are no leases: nobody else hears of them, they enter no stream and no ledger, and are in no
count of the run's tokens. But nothing unproven is given to a guest either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.bus.chunks import head
from pipeline.errors import SluiceError
from pipeline.messages import Completion, Work
from pipeline.protocols import Engine
from pipeline.weights.subscriber import Subscriber
from services.inference.openai.inbox import Guest, Inbox
from services.inference.openai.rejections import invalid, unavailable

LOOK_SECONDS = 0.05
"""Between two looks at what is running, for those who watch."""
LOOK_SHARE = 0.01
"""Of the loop's time all looks take so much at most: where one is dear, they are rarer."""
CODES = {"prompt_too_long": "context_length_exceeded"}
"""OpenAI's names for what an engine refuses."""


@dataclass
class Stay:
    """A guest's work in the engine, and the members of it that were not given yet."""

    guest: Guest
    work: Work
    missing: set[int]


class Guests:
    """Called by the loop alone, between two forward passes; costs nothing while nobody is in."""

    def __init__(
        self,
        inbox: Inbox,
        engine: Engine,
        *,
        weights: Subscriber,
        num_proven: Callable[[Completion], int],
    ) -> None:
        """`num_proven` counts a completion's tokens up to the first that is not proven."""
        self.inbox, self._engine, self._weights = inbox, engine, weights
        self._num_proven = num_proven
        self._stays: dict[str, Stay] = {}
        self._waiting: list[Completion] = []  # finished, and not proven yet
        self._look_at = 0.0

    def admit(self) -> None:
        """Begin with who arrived, drop who left."""
        inbox, weights = self.inbox, self._weights
        if inbox.places and not inbox.is_open and weights.serves(self._engine.version):
            inbox.open()
        if not inbox.has_news:
            return
        for guest in self.inbox.arrived():
            self._begin(guest)
        for guest in self.inbox.left():
            self._end(guest)

    def take(self, finished: list[Completion]) -> list[Completion]:
        """Give guests what is theirs and proven, of these and of before; the run's are returned."""
        if not self._stays:
            return finished
        self._waiting += [done for done in finished if done.group in self._stays]
        others = [done for done in finished if done.group not in self._stays]
        for done in [c for c in self._waiting if self._num_proven(c) == c.tokens]:
            self._waiting.remove(done)
            self._give(done)
        if time.monotonic() >= self._look_at and any(s.guest.watched for s in self._stays.values()):
            self._look()
        return others

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Out of the engine while a flip is undone; then on from the last token that is proven."""
        running = [c for c in self._engine.prefixes() if c.group in self._stays]
        lost = [c for c in self._waiting if self._num_proven(c) < c.tokens]
        self._waiting = [c for c in self._waiting if c not in lost]
        for group in self._stays:
            self._engine.drop(group)
        yield
        prefixes = {(c.group, c.member): head(c, self._num_proven(c)) for c in (*running, *lost)}
        for group, stay in self._stays.items():
            done = {c.member for c in self._waiting if c.group == group}
            if todo := sorted(stay.missing - done):
                found = {m: prefixes[group, m] for m in todo if (group, m) in prefixes}
                known = {m: prefix for m, prefix in found.items() if prefix.tokens}
                work = Work(prompt=stay.work.prompt, todo=tuple(todo), prefixes=known)
                self._engine.add(work)

    def turn_away(self, reason: str) -> None:
        """Everybody, and whoever comes until there is something proven to sample by."""
        if not self.inbox.places:
            return
        self.inbox.shut(unavailable(reason))
        for guest in self.inbox.arrived():
            guest.turn_away(unavailable(reason))
            self.inbox.free(guest)
        for guest in {stay.guest for stay in self._stays.values()}:
            guest.turn_away(unavailable(reason))
            self._end(guest)

    @property
    def _trouble(self) -> str:
        """Why nothing can be begun by what serves now; empty where it can."""
        if quarantine := self._weights.quarantine:
            return f"this engine is quarantined: {quarantine}"
        if self._weights.is_forgotten(self._engine.version):
            return "the weights were rolled back; the next are on their way"
        return ""

    def _begin(self, guest: Guest) -> None:
        for work in guest.works:
            self._stays[work.prompt.group] = Stay(guest, work, set(work.todo))
        if reason := self._trouble:
            guest.turn_away(unavailable(reason))
            self._end(guest)
            return
        try:
            for work in guest.works:
                self._engine.add(work)
        except SluiceError as exc:
            reason = str(exc).partition(": ")[0]
            guest.turn_away(invalid(str(exc), "prompt", CODES.get(reason, reason)))
            self._end(guest)

    def _end(self, guest: Guest) -> None:
        """Drop what is left of it, once."""
        groups = [work.prompt.group for work in guest.works if work.prompt.group in self._stays]
        if not groups:
            return
        for group in groups:
            if self._stays.pop(group).missing:
                self._engine.drop(group)
        self._waiting = [c for c in self._waiting if c.group not in groups]
        self.inbox.free(guest)

    def _give(self, done: Completion) -> None:
        stay = self._stays[done.group]
        stay.missing.discard(done.member)
        stay.guest.give(done)
        mine = [self._stays[work.prompt.group] for work in stay.guest.works]
        if not any(one.missing for one in mine):
            self._end(stay.guest)

    def _look(self) -> None:
        started = time.thread_time()  # not of a machine that was busy with others meanwhile
        for prefix in self._engine.prefixes():
            stay = self._stays.get(prefix.group)
            if stay and stay.guest.watched:
                stay.guest.give(head(prefix, self._num_proven(prefix)))
        pause = max(LOOK_SECONDS, (time.thread_time() - started) / LOOK_SHARE)
        self._look_at = time.monotonic() + pause
