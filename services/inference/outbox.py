"""Finished members that wait for the proof of the weights that sampled them.

Nothing unproven enters the stream: a completion leaves once every version that this boot put into
it has been confirmed by fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.bus.leases import Lease
from pipeline.messages import Completion, Span, Work


class Outbox:
    """Also knows which members of a leased group are still to be delivered."""

    def __init__(self, proven: Callable[[Span], bool]) -> None:
        """`proven` says whether a span may leave."""
        self._proven = proven
        self._waiting: dict[tuple[str, int], tuple[Lease[Work], Completion]] = {}
        self._missing: dict[str, set[int]] = {}

    def expect(self, lease: Lease[Work]) -> None:
        """A group was taken: these members are to come."""
        self._missing[lease.group] = set(lease.work.todo)

    def put(self, lease: Lease[Work], completion: Completion) -> None:
        """A member finished."""
        self._waiting[completion.group, completion.member] = (lease, completion)

    def proven(self) -> list[tuple[Lease[Work], Completion]]:
        """What may leave now; it stays here until it is settled."""
        return [(lease, done) for lease, done in self._waiting.values() if self.may_leave(done)]

    def may_leave(self, completion: Completion) -> bool:
        """Whether every version that was run here is proven."""
        return all(self._proven(span) for span in completion.spans)

    def settle(self, completion: Completion) -> None:
        """The bus has it."""
        del self._waiting[completion.group, completion.member]
        self._missing.get(completion.group, set()).discard(completion.member)

    def complete(self, group: str) -> bool:
        """Whether no member of the group is to come."""
        return not self._missing.get(group)

    def forget(self, group: str) -> None:
        """No member of the group is expected any more; what is finished still leaves."""
        self._missing.pop(group, None)

    def clear(self) -> None:
        """Drop everything."""
        self._waiting.clear()
        self._missing.clear()
