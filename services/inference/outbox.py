"""The groups in hand, and finished members that wait for the proof of what sampled them.

Nothing unproven enters the stream: a completion leaves once every version that this boot put into
it has been confirmed by fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from pipeline.bus.leases import Lease
from pipeline.messages import Completion, Span, Work


class Outbox:
    """`leases` by group; which of their members are to come, and which are here and cannot go."""

    def __init__(self, proven: Callable[[Span], bool]) -> None:
        """`proven` says whether a span may leave."""
        self._proven = proven
        self.leases: dict[str, Lease[Work]] = {}
        self._waiting: dict[tuple[str, int], tuple[Lease[Work], Completion]] = {}
        self._missing: dict[str, set[int]] = {}
        self._left: set[tuple[str, int]] = set()
        self._denied: set[tuple[str, int]] = set()

    def expect(self, lease: Lease[Work]) -> None:
        """A group was taken: its members are to come."""
        self.leases[lease.group] = lease
        self._missing[lease.group] = set(lease.work.todo)

    def put(self, completion: Completion) -> None:
        """A member finished."""
        lease = self.leases[completion.group]
        self._waiting[completion.group, completion.member] = (lease, completion)

    def leaving(self) -> list[tuple[Lease[Work], Completion]]:
        """What may leave and has not yet; it stays here until it is settled."""
        if len(self._left) == len(self._waiting):
            return []
        found = {
            member: (lease, done)
            for member, (lease, done) in self._waiting.items()
            if member not in self._left and self.num_proven(done) == done.tokens
        }
        self._left |= found.keys()
        return [*found.values()]

    def take_back(self) -> list[Completion]:
        """Take out what is not proven, even what has left; its members are to come once more."""
        unproven = [c for c in self.waiting() if self.num_proven(c) < c.tokens]
        for completion in unproven:
            self._remove((completion.group, completion.member))
        return unproven

    def num_proven(self, completion: Completion) -> int:
        """Its tokens up to the first that were sampled by something unproven."""
        return sum(span.tokens for span in takewhile(self._proven, completion.spans))

    def waiting(self) -> list[Completion]:
        """Finished, and still here."""
        return [completion for _, completion in self._waiting.values()]

    def has(self, completion: Completion) -> bool:
        """Whether this very attempt at its member is here; it may have been taken back."""
        held = self._waiting.get((completion.group, completion.member))
        return held is not None and held[1] is completion

    def is_first_denial(self, completion: Completion) -> bool:
        """The bus knows no proof of it. Once all here are given again, that must be another's.

        After the first one it may leave again.
        """
        member = (completion.group, completion.member)
        is_first = member not in self._denied
        self._denied.add(member)
        if is_first:
            self._left.discard(member)
        return is_first

    def settle(self, completion: Completion) -> None:
        """The bus has it, or wants it no more."""
        self._remove((completion.group, completion.member))
        self._missing.get(completion.group, set()).discard(completion.member)

    def is_complete(self, group: str) -> bool:
        """Whether no member of the group is to come."""
        return not self._missing.get(group)

    def forget(self, group: str) -> None:
        """No member of the group is expected any more; what is finished still leaves."""
        self.leases.pop(group, None)
        self._missing.pop(group, None)

    def clear(self) -> list[Completion]:
        """Drop everything; what was waiting."""
        dropped = self.waiting()
        for held in (self.leases, self._waiting, self._missing, self._denied, self._left):
            held.clear()
        return dropped

    def _remove(self, member: tuple[str, int]) -> None:
        del self._waiting[member]
        self._denied.discard(member)
        self._left.discard(member)
