"""What another engine could go on from: each sequence up to its last proven token.

Saved now and then while it runs, lest a kill take more of it along than a chunk; and at the end,
when its lease is given back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pipeline.bus.chunks import head
from pipeline.bus.leases import Lease
from pipeline.bus.prompts import Prompts
from pipeline.errors import Gone
from pipeline.messages import Completion, Work
from services.inference.metrics import Numbers
from services.inference.outbox import Outbox

log = logging.getLogger(__name__)

CHUNK_TOKENS = 256
LEAST_TOKENS = CHUNK_TOKENS // 2
LEAST_STEPS = 16


class Chunks:
    """When to look at what is running, and which of it to save then.

    A look costs as much as all sequences are long, so it is rare: a step adds one token to each, so
    none can be due before the longest unsaved stretch has grown to a chunk. With the first one that
    is due all go that have half a chunk.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._saved: dict[tuple[str, int], int] = {}
        self._steps = CHUNK_TOKENS

    def is_time(self) -> bool:
        """Asked once a step: whether something may be due."""
        self._steps -= 1
        return self._steps <= 0

    def due(self, running: Iterable[Completion]) -> list[tuple[Lease[Work], Completion]]:
        """Prefixes to save, from all that is running; only proven tokens."""
        found, longest = [], 0
        for whole in running:
            lease = self._outbox.leases[whole.group]
            proven, saved = self._outbox.num_proven(whole), self._saved_of(lease, whole)
            if proven - saved >= LEAST_TOKENS:
                self._saved[whole.group, whole.member] = saved = proven
                found.append((lease, head(whole, proven)))
            longest = max(longest, whole.tokens - saved)
        self._steps = max(LEAST_STEPS, CHUNK_TOKENS - longest)
        return found

    def failed(self, prefix: Completion) -> None:
        """It was not saved: try again when it is next looked at."""
        self._saved.pop((prefix.group, prefix.member), None)

    def forget(self, group: str) -> None:
        """None of its members will be saved any more."""
        for member in [m for m in self._saved if m[0] == group]:
            del self._saved[member]

    def _saved_of(self, lease: Lease[Work], whole: Completion) -> int:
        prefix = lease.work.prefixes.get(whole.member)
        return self._saved.get((whole.group, whole.member), prefix.tokens if prefix else 0)


def hand_over(
    prompts: Prompts, boot: str, running: Iterable[Completion], *, outbox: Outbox, numbers: Numbers
) -> None:
    """Save what is running and what waits in the outbox, then free the leases. Raises Gone.

    What cannot be saved is lost, and counted: whoever resumes the member does without it.
    """
    left = [*running, *outbox.waiting()]
    prefixes = [
        (outbox.leases[whole.group], head(whole, outbox.num_proven(whole)))
        for whole in left
        if whole.group in outbox.leases
    ]
    try:
        replies = prompts.save_all(boot, prefixes)
        for (_, prefix), reply in zip(prefixes, replies, strict=True):
            if reply == "ok":
                numbers.saved(prefix, boot)
            elif reply != "gone":
                log.warning("group=%s member=%d not saved: %s", prefix.group, prefix.member, reply)
        if "gone" in replies:
            raise Gone(f"{boot} was declared dead")
        prompts.give_back(boot, [*outbox.leases.values()])
    finally:
        outbox.clear()
        numbers.lost(left, boot)
