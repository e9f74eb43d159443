"""Carries between the loop and the desk of prompts, so that no forward pass waits for a round trip,
nor for a network that is cut. What is carried, and what becomes of the answers, is the service's.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.bus.errors import Unreachable
from pipeline.bus.leases import Lease, Taken
from pipeline.bus.prompts import Prompts
from pipeline.messages import Completion, Work

TRIP_SECONDS = 0.05

Held = tuple[Lease[Work], Completion]


class Answer(NamedTuple):
    """What the bus replied to a finished member, or to the prefix of one."""

    lease: Lease[Work]
    completion: Completion
    reply: str


class Request(NamedTuple):
    """For up to `room` groups, by an engine that runs `version` and holds these tickets.

    And for up to `pinned_room` of the evaluation of version `pinned`, if it keeps one.
    """

    version: int
    held: tuple[str, ...]
    room: int
    pinned: int = -1
    pinned_room: int = 0


class Parcel:
    """All that is carried in one go: members, prefixes, and a request for prompts."""

    def __init__(self) -> None:
        self.members: list[Held] = []
        self.prefixes: list[Held] = []
        self.request: Request | None = None

    def __bool__(self) -> bool:
        return bool(self.members or self.prefixes or self.request)


class Courier:
    """A thread that takes what was left for it, all at once, and comes back with the answers.

    It leaves at once with a request for prompts, since slots may stand empty until it is back, and
    otherwise when its last trip is a little while ago: each costs the engine's thread some of the
    interpreter's time.

    While the server cannot be reached it tries again: every act may be repeated, and whether work
    that was in hand still is, the bus says afterwards. How long that may last is for the loop.

    There is never more to carry than the leases in hand are about, so the queue needs no bound of
    its own. Nothing is kept here: until its answer came, the outbox has what was left.
    """

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._boot = ""
        self._changed = threading.Condition()
        self._out, self._carrying = Parcel(), Parcel()
        self._answers: list[Answer] = []
        self._taken: Taken | None = None
        self._error: Exception | None = None
        self._idle = self._hurried = self._clearing = self._closed = False
        self._thread = threading.Thread(target=self._carry_on, name="courier", daemon=True)

    def start(self) -> None:
        """Begin to carry."""
        self._thread.start()

    @property
    def away(self) -> bool:
        """Whether something is left to carry, or on its way."""
        return bool(self._out or self._carrying)

    @property
    def asked(self) -> bool:
        """Whether an answer to a request is yet to come, or to be heard."""
        return bool(self._out.request or self._carrying.request or self._taken)

    def leave(
        self,
        boot: str,
        *,
        members: Sequence[Held] = (),
        prefixes: Sequence[Held] = (),
        request: Request | None = None,
    ) -> None:
        """Have these carried, in the name of this boot. Returns at once."""
        if not (members or prefixes or request):
            return
        with self._changed:
            self._boot = boot
            self._out.members += members
            self._out.prefixes += prefixes
            self._out.request = request or self._out.request
            if self._idle or request:  # else it comes by itself, and would be woken for nothing
                self._changed.notify_all()

    def answers(self) -> list[Answer]:
        """What came back since the last call, in order.

        Raises what the bus did, once the answers before that were heard; Gone, for one.
        """
        with self._changed:
            answers, self._answers = self._answers, []
            if not answers and self._error:
                raise self._error
            return answers

    def taken(self) -> Taken | None:
        """The answer to the request, once."""
        with self._changed:
            taken, self._taken = self._taken, None
            return taken

    def wait(self, seconds: float) -> None:
        """Until nothing is under way, or the seconds are over; it leaves with what there is."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self.away, seconds)
            self._hurried = False

    def clear(self) -> None:
        """Forget everything, once what is under way has arrived."""
        with self._changed:
            self._out, self._clearing = Parcel(), True
            self._changed.wait_for(lambda: not self._carrying)
            self._answers, self._taken, self._error = [], None, None
            self._clearing = False

    def close(self) -> None:
        """Carry no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=5)

    def _carry_on(self) -> None:
        while self._pick_up():
            answers: list[Answer] = []
            taken, error = None, None
            try:
                taken = self._carry_at_last(self._carrying, answers)
            except Exception as exc:  # raised again in the engine's thread by answers
                error = exc
            with self._changed:
                self._answers += answers
                self._taken, self._error = taken or self._taken, error or self._error
                self._carrying = Parcel()
                self._changed.notify_all()

    def _pick_up(self) -> bool:
        """Rest from the last trip, then wait for something to carry; whether there is."""
        with self._changed:
            self._changed.wait_for(self._cannot_wait, TRIP_SECONDS)
            self._idle = True
            self._changed.wait_for(lambda: self._out or self._closed)
            self._idle = False
            self._carrying, self._out = self._out, Parcel()
            return not self._closed

    def _cannot_wait(self) -> bool:
        return bool(self._out.request or self._hurried or self._closed)

    def _carry_at_last(self, parcel: Parcel, answers: list[Answer]) -> Taken | None:
        """However long the server is away; each try lasts for as long as an act may."""
        while True:
            try:
                return self._carry(parcel, answers)
            except Unreachable:
                if self._clearing or self._closed:
                    raise

    def _carry(self, parcel: Parcel, answers: list[Answer]) -> Taken | None:
        """Members first: they free places, and the window may have a prompt for each."""
        del answers[:]
        for held, act in (
            (parcel.members, self._prompts.deliver),
            (parcel.prefixes, self._prompts.save_all),
        ):
            replies = act(self._boot, held) if held else []
            answers += [Answer(*pair, reply) for pair, reply in zip(held, replies, strict=True)]
        if (request := parcel.request) is None:
            return None
        return self._prompts.take(
            self._boot,
            version=request.version,
            held=request.held,
            count=request.room,
            pin=request.pinned if request.pinned >= 0 else None,
            pinned_count=request.pinned_room,
        )
