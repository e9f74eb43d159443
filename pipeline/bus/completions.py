"""The desk of scoring: completions are drawn, and come back as scores."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from pipeline.bus.blobs import Act, Blobs, Load
from pipeline.bus.errors import TooLarge
from pipeline.bus.leases import Answerable, Lease, poll, unless_gone
from pipeline.bus.scripts import Arg, Scripts
from pipeline.codec import decode
from pipeline.errors import DecodeError
from pipeline.messages import Completion, Prompt, Score

log = logging.getLogger(__name__)
STREAM = "completions"


class Completions:
    """Members that were delivered and wait for a score."""

    def __init__(self, scripts: Scripts, blobs: Blobs) -> None:
        self._scripts, self._blobs = scripts, blobs

    def draw(
        self, boot: str, *, held: Sequence[str], count: int, wait: float = 0.0
    ) -> list[Lease[Answerable]]:
        """Up to `count` completions: those handed back or left by the dead first, then new ones.

        `held` are the tickets that the boot still works on; others of its are given back. Polls
        for at most `wait` seconds. Raises Gone.
        """

        def once() -> list[Lease[Answerable]]:
            status, *rows = self._scripts.call("draw", boot, count, *held)
            unless_gone(status, boot)
            leases = [self._lease(boot, row) for row in rows]
            return [lease for lease in leases if lease]

        return poll(once, bool, wait)

    def score(self, boot: str, done: Sequence[tuple[Lease[Answerable], Score]]) -> list[str]:
        """Settle completions; "ok", "dup", "closed" (the group had ended), "too_large" or "gone".

        A score with `error` fails the member as `scorer_error`, with a dead letter, and so does one
        of more than 64 MiB, the most that is sent. The last member releases the group, or closes it
        where none has a score.
        """
        acts = [self._act(boot, *pair) for pair in done]
        replies = self._blobs.send("score", acts)
        return [
            "too_large" if reply == b"ok" and _is_cut(act, score) else reply.decode()
            for act, (_, score), reply in zip(acts, done, replies, strict=True)
        ]

    def give_back(self, boot: str, leases: Sequence[Lease[Answerable]]) -> None:
        """Free for another scorer at once, without a strike."""
        self._scripts.call("give_back", STREAM, boot, *(lease.entry for lease in leases))

    def fail(self, boot: str, lease: Lease[Answerable], reason: str) -> None:
        """Dead-letter the member. No effect without the ticket."""
        assert lease.member is not None, "a completion's lease names its member"
        self._fail(boot, lease.entry, lease.group, lease.member, reason)

    def _fail(self, boot: str, entry: str, group: str, member: int, reason: str) -> None:
        self._scripts.call("fail", STREAM, boot, entry, group, member, reason)

    def _lease(self, boot: str, row: list[Any]) -> Lease[Answerable] | None:
        entry, group, m, strikes, prompt, completion = row
        member = int(m)
        try:
            work = Answerable(decode(Prompt, prompt), self._blobs.decode(Completion, completion))
        except DecodeError as exc:
            log.warning("dead-lettered group=%s member=%s %s", group.decode(), member, exc)
            self._fail(boot, entry.decode(), group.decode(), member, str(exc))
            return None
        return Lease(entry.decode(), group.decode(), work, strikes, member)

    def _act(self, boot: str, lease: Lease[Answerable], score: Score) -> Act:
        assert lease.member is not None, "a completion's lease names its member"
        head: list[Arg] = [boot, lease.entry, lease.group, lease.member]
        error = score.error
        if error is None:
            at, what = f"{lease.group}:r:{lease.member}", "score of member"
            try:
                load = self._blobs.load(score, at, f"{what} {lease.member} of {lease.group}")
                return Act([*head, "score"], load, [_outcome(score)])
            except TooLarge as exc:
                log.warning("group=%s member=%d %s", lease.group, lease.member, exc)
                error = f"too_large: {exc}"
        return Act([*head, "error"], Load(f"scorer_error: {error}".encode()))


def _is_cut(act: Act, score: Score) -> bool:
    """Whether a score without a fault had to go as one."""
    return act.head[-1] == "error" and score.error is None


def _outcome(score: Score) -> str:
    """As JSON, for the evaluation that a held-out member is of."""
    found = score.reward if score.outcome is None else score.outcome
    return "null" if found is None or not math.isfinite(found) else repr(float(found))
