"""What an engine that leaves hands to the next: each sequence up to its last proven token."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pipeline.bus.chunks import head
from pipeline.bus.prompts import Prompts
from pipeline.errors import Gone
from pipeline.messages import Completion
from services.inference.metrics import Numbers
from services.inference.outbox import Outbox

log = logging.getLogger(__name__)


def hand_over(
    prompts: Prompts, boot: str, running: Iterable[Completion], *, outbox: Outbox, numbers: Numbers
) -> None:
    """Save what is running and what waits in the outbox, then free the leases. Raises Gone.

    What cannot be saved is lost, and counted: whoever resumes the member does without it.
    """
    left = [*running, *outbox.waiting()]
    leases = list(outbox.leases.values())
    try:
        while left:
            _save(prompts, boot, left[-1], outbox=outbox, numbers=numbers)
            left.pop()
        prompts.give_back(boot, leases)
    finally:
        outbox.clear()
        numbers.lost(left, boot)


def _save(
    prompts: Prompts, boot: str, whole: Completion, *, outbox: Outbox, numbers: Numbers
) -> None:
    lease = outbox.leases.get(whole.group)
    prefix = head(whole, outbox.num_proven(whole))
    reply = prompts.save(boot, lease, prefix) if lease else "closed"
    if reply == "gone":
        raise Gone(f"{boot} was declared dead")
    if reply != "ok":
        log.warning("group=%s member=%d not saved: %s", whole.group, whole.member, reply)
    numbers.saved(whole, prefix if reply == "ok" else head(whole, 0), boot)
