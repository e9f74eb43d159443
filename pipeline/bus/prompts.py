"""The desk of prompting and inference: groups go in, and come back member by member."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, cast

from pipeline.bus.blobs import Act, Blobs, Load
from pipeline.bus.chunks import cut, join
from pipeline.bus.errors import MemoryFull, TooLarge
from pipeline.bus.leases import Lease, Taken, cargo, span_args, unless_gone
from pipeline.bus.scripts import Arg, Scripts
from pipeline.codec import decode
from pipeline.errors import DecodeError
from pipeline.messages import Completion, Prompt, Work

log = logging.getLogger(__name__)
Admission = Literal["ok", "moved", "full", "memory"]
STREAM = "prompts"


class Prompts:
    """Prompt groups on their way to engines, and members on their way back."""

    def __init__(self, scripts: Scripts, blobs: Blobs) -> None:
        self._scripts, self._blobs = scripts, blobs

    def admit(
        self, prompts: Sequence[Prompt], *, cursor: int, next_cursor: int, eof: bool
    ) -> Admission:
        """Let groups in and move the data cursor, if it still stands at `cursor` (else "moved").

        "full": the window has no place for all of them, or the run has stopped; "memory": the
        server is 75 % full. Either way nothing was admitted.
        """
        args: list[Arg] = [cursor, next_cursor, int(eof)]
        for p in prompts:
            args += [p.group, p.seq, p.members, cargo(p, f"prompt {p.group}")]
        try:
            return cast(Admission, self._scripts.call("admit", *args).decode())
        except MemoryFull:
            return "memory"

    def take(
        self,
        boot: str,
        *,
        version: int,
        held: Sequence[str],
        count: int,
        pin: int | None = None,
        pinned_count: int = 0,
    ) -> Taken:
        """Up to `count` groups: those handed back or left by the dead first, then new ones.

        `held` are the tickets (Lease.entry) that the boot still works on; others of its are given
        back. Raises Gone.

        An engine that keeps the weights of version `pin` gets up to `pinned_count` groups of its
        evaluation besides; "unproven" where it has not proven that.
        """
        pinned: Arg = "" if pin is None else pin
        status, *rows = self._scripts.call(
            "take", boot, version, count, pinned, pinned_count, *held
        )
        leases = [self._lease(boot, row) for row in rows]
        return Taken(cast(Any, unless_gone(status, boot)), [lease for lease in leases if lease])

    def save_all(self, boot: str, prefixes: Sequence[tuple[Lease[Work], Completion]]) -> list[str]:
        """Keep members' prefixes (all their tokens so far) for whoever has to resume them.

        Only what is not saved yet travels. The reply of each, in order: "ok"; "unproven" (try again
        after the confirmation), "behind" (somebody saved more in between: try again); and where the
        prefix is of no use any more: "closed" (its group), "gone" (this boot), "lost" (the ticket
        has another owner), "dup" (delivered, or failed), "too_large" (the member is failed for it).
        """
        keys = self._scripts.keys
        places = [(keys.group(lease.group), prefix.member) for lease, prefix in prefixes]
        saved = self._scripts.read(*(("HMGET", key, f"i:{m}", f"q:{m}") for key, m in places))
        acts = [
            self._chunk(boot, lease, prefix, tuple(int(count or 0) for count in counts))
            for (lease, prefix), counts in zip(prefixes, saved, strict=True)
        ]
        return self._send("save", acts)

    def deliver(self, boot: str, done: Sequence[tuple[Lease[Work], Completion]]) -> list[str]:
        """Hand in finished members; the reply of each, in order. A repeat is told the same.

        "ok"; "late" (the group had ended) and "duplicate" (another was first, or it failed): the
        tokens are booked so; "closed": forgotten long ago; "gone": this boot was declared dead;
        "unproven": keep it and try again after the confirmation; "too_large": the member is more
        than 64 MiB, the most that is sent, and is failed for it.
        """
        return self._send("deliver", [self._whole(boot, *pair) for pair in done])

    def give_back(self, boot: str, leases: Sequence[Lease[Work]]) -> None:
        """Free for another engine at once, without a strike. What is not owned is left alone."""
        self._scripts.call("give_back", STREAM, boot, *(lease.entry for lease in leases))

    def fail(self, boot: str, lease: Lease[Work], reason: str, member: int | None = None) -> None:
        """Dead-letter a member, or all that are not delivered. No effect without the ticket."""
        m: Arg = "" if member is None else member
        self._scripts.call("fail", STREAM, boot, lease.entry, lease.group, m, reason)

    def _lease(self, boot: str, row: list[Any]) -> Lease[Work] | None:
        entry, group, strikes, payload, todo, chunks = row
        lease = Lease(entry.decode(), group.decode(), None, strikes)
        try:
            prompt = decode(Prompt, payload)
        except DecodeError as exc:
            self._unreadable(boot, lease, exc, None)
            return None
        prefixes = self._prefixes(boot, lease, chunks)
        left = tuple(m for m in todo if prefixes.get(m, True) is not None)
        if not left:
            return None
        work = Work(
            prompt=prompt, todo=left, prefixes={m: p for m, p in prefixes.items() if p is not None}
        )
        return Lease(lease.entry, lease.group, work, strikes)

    def _prefixes(
        self, boot: str, lease: Lease[None], chunks: list[Any]
    ) -> dict[int, Completion | None]:
        by_member: dict[int, list[bytes]] = {}
        for m, chunk in zip(chunks[::2], chunks[1::2], strict=True):
            by_member.setdefault(m, []).append(chunk)
        out: dict[int, Completion | None] = {}
        for m, parts in by_member.items():
            try:
                out[m] = join([self._blobs.decode(Completion, part) for part in parts])
            except DecodeError as exc:
                self._unreadable(boot, lease, exc, m)
                out[m] = None
        return out

    def _send(self, name: str, acts: Sequence[Act | str]) -> list[str]:
        """The replies, in order; of what is none, the word that stands in its place."""
        sent = self._blobs.send(name, [act for act in acts if not isinstance(act, str)])
        replies = iter(sent)
        return [act if isinstance(act, str) else next(replies).decode() for act in acts]

    def _chunk(
        self, boot: str, lease: Lease[Work], prefix: Completion, saved: tuple[int, ...]
    ) -> Act | str:
        """What saves all that follows the chunks and tokens saved; or what is replied."""
        number, tokens = saved
        m, part = prefix.member, cut(prefix, tokens)
        if not part.tokens:
            return "ok"
        load = self._load(boot, lease, part, f"p:{m}:{number}")
        head: list[Arg] = [boot, lease.group, m, number, lease.entry]
        return Act(head, load, span_args(part.spans)) if load else "too_large"

    def _whole(self, boot: str, lease: Lease[Work], done: Completion) -> Act | str:
        """What delivers it, or what is replied."""
        load = self._load(boot, lease, done, f"c:{done.member}")
        head: list[Arg] = [boot, lease.group, done.member]
        return Act(head, load, span_args(done.spans)) if load else "too_large"

    def _load(self, boot: str, lease: Lease[Work], sent: Completion, field: str) -> Load | None:
        """None where it is too large: nobody who takes the group next could send it either."""
        what = "member" if sent.finish else "prefix of member"
        try:
            return self._blobs.load(
                sent, f"{lease.group}:{field}", f"{what} {sent.member} of group {lease.group}"
            )
        except TooLarge as exc:
            log.warning("dead-lettered group=%s member=%d %s", lease.group, sent.member, exc)
            self.fail(boot, lease, f"too_large: {exc}", sent.member)
            return None

    def _unreadable(
        self, boot: str, lease: Lease[None], exc: DecodeError, member: int | None
    ) -> None:
        log.warning("dead-lettered group=%s member=%s %s", lease.group, member, exc)
        m: Arg = "" if member is None else member
        self._scripts.call("fail", STREAM, boot, lease.entry, lease.group, m, str(exc))
