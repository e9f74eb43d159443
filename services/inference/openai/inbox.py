"""Between the threads that answer requests and the loop that samples: who is in, and who has left.

A guest is one request; its sequences take places, of which there are a few. What the loop does with
a guest is in `guests`, what a thread makes of the answer in `endpoint`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pipeline.messages import Completion, Work
from services.inference.openai.rejections import Rejection, crowded, invalid, unavailable

STARTING = "no version of the weights is proven yet"


class Guest:
    """One request: its work, and the newest that is known of each of its sequences.

    Of a guest that is `watched` prefixes are told too; of others, what is finished. All that is
    told is proven, and only ever grows.
    """

    def __init__(self, works: Sequence[Work], *, watched: bool = False) -> None:
        self.works, self.watched = tuple(works), watched
        self.size = sum(len(work.todo) for work in works)
        self._changed = threading.Condition()
        self._news: dict[tuple[str, int], Completion] = {}
        self._rejection: Rejection | None = None

    def give(self, completion: Completion) -> None:
        """From the loop: a sequence up to here, or whole. Takes the place of what was not read."""
        with self._changed:
            self._news[completion.group, completion.member] = completion
            self._changed.notify_all()

    def turn_away(self, rejection: Rejection) -> None:
        """From the loop: nothing more is to come."""
        with self._changed:
            self._rejection = rejection
            self._changed.notify_all()

    def news(self, seconds: float) -> list[Completion]:
        """What came since the last call; waits for it up to `seconds`. Raises Rejection."""
        with self._changed:
            self._changed.wait_for(lambda: self._news or self._rejection, seconds)
            news, self._news = [*self._news.values()], {}
            if self._rejection and not news:
                raise self._rejection
            return news


class Inbox:
    """A guest enters, and leaves when it was answered or has gone; its thread says both."""

    def __init__(self, places: int) -> None:
        """For so many sequences at once; 0: there is no endpoint."""
        self.places = self._free = places
        self._changed = threading.Condition()
        self._shut: Rejection | None = unavailable(STARTING)
        self._present: set[Guest] = set()
        self._arrived: list[Guest] = []
        self._left: list[Guest] = []

    def check(self, size: int) -> None:
        """Raises Rejection for more sequences than there are ever places for."""
        if size > self.places:
            message = f"asks for {size} sequences; {self.places} at once are let in"
            raise invalid(f"{message} (inference.endpoint)", "n")

    def enter(self, guest: Guest) -> None:
        """Raises Rejection where there is no place for it now, or never is."""
        self.check(guest.size)
        with self._changed:
            if self._shut:
                raise self._shut
            if guest.size > self._free:
                raise crowded(guest.size, self.places)
            self._free -= guest.size
            self._present.add(guest)
            self._arrived.append(guest)

    def leave(self, guest: Guest) -> None:
        """Its thread is done with it: what is in the engine of it is of no use any more."""
        with self._changed:
            self._present.discard(guest)
            self._left.append(guest)
            self._changed.notify_all()

    # What the loop asks.

    @property
    def is_open(self) -> bool:
        """Whether guests are let in; never without places."""
        return self._shut is None

    @property
    def has_news(self) -> bool:
        """Whether anybody arrived or left."""
        return bool(self._arrived or self._left)

    def open(self) -> None:
        """From now on there is something to sample by."""
        with self._changed:
            self._shut = None

    def shut(self, rejection: Rejection) -> None:
        """Whoever comes is told this."""
        with self._changed:
            self._shut = rejection

    def arrived(self) -> list[Guest]:
        """Since the last call."""
        with self._changed:
            arrived, self._arrived = self._arrived, []
            return arrived

    def left(self) -> list[Guest]:
        """Since the last call; among them those that were answered."""
        with self._changed:
            left, self._left = self._left, []
            return left

    def free(self, guest: Guest) -> None:
        """Nothing of it is in the engine any more."""
        with self._changed:
            self._free += guest.size

    def await_empty(self, seconds: float) -> None:
        """Until every guest that was in has its answer."""
        with self._changed:
            self._changed.wait_for(lambda: not self._present, seconds)
