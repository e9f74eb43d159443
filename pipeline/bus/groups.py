"""The desk of training: leads a run, collects whole groups, and commits what became of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from pipeline.bus.scripts import Arg, Scripts
from pipeline.codec import decode
from pipeline.errors import DecodeError, Fenced, Gone
from pipeline.ledger import Fates
from pipeline.messages import Completion, Group, Member, Prompt, Score

log = logging.getLogger(__name__)
Fields = dict[bytes, bytes]


class Ticket(Struct, frozen=True):
    """A group that is ready; `start_step` is the step of the weights that first took it."""

    group: str
    seq: int
    start_step: int


class Ready(Struct, frozen=True):
    """One look at the run: `batch` records are committed, `groups` wait, strictly oldest first.

    `alive` groups hold a place, the ready ones among them. Nothing can come any more once `eof`
    holds and no other is alive.
    """

    batch: int
    groups: list[Ticket]
    eof: bool
    alive: int


class Groups:
    """Ready groups. One trainer leads; every act of a former one raises Fenced."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._epoch: int | None = None

    def lead(self, epoch: int, boot: str) -> None:
        """Become the trainer of the run; raises Fenced unless the epoch is above all before."""
        self._fenced(self._scripts.call("lead", epoch, boot), epoch)
        self._epoch = epoch

    def collect(self, epoch: int) -> Ready:
        """The ready groups, sorted by (start step, seq), and the batch number, in one look."""
        status, *reply = self._scripts.call("collect", epoch)
        self._fenced(status, epoch)
        batch, eof, alive, entries = reply
        tickets = [Ticket(f[1].decode(), int(f[3]), int(f[5])) for _, f in entries]
        return Ready(
            batch=int(batch),
            groups=sorted(tickets, key=lambda t: (t.start_step, t.seq)),
            eof=eof == b"1",
            alive=alive,
        )

    def fetch(self, groups: Sequence[str]) -> list[Group]:
        """The cargo of ready groups, in order; one that was closed meanwhile is left out.

        So is one that cannot be decoded: the process that leads closes it as failed.
        """
        keys = self._scripts.keys
        replies: list[Fields] = self._scripts.read(*(("HGETALL", keys.group(g)) for g in groups))
        out = []
        for group, fields in zip(groups, replies, strict=True):
            if fields.get(b"state") == b"ready" and (found := self._decode(group, fields)):
                out.append(found)
        return out

    def refuse(self, epoch: int, group: str, fates: Fates) -> None:
        """Close a whole group that cannot be used, with its sums; harmless where it is closed."""
        self._fenced(self._scripts.call("refuse", epoch, "", *_sums(group, fates)), epoch)

    def commit(self, epoch: int, *, batch: int, changed: bool, fates: Mapping[str, Fates]) -> str:
        """Record `batch` is on disk and stepped: close its groups with their sums.

        "ok"; "old": it was committed before (what still lived of it is closed now); "behind": a
        record before it is missing. `changed` says whether the step made new weights.
        """
        sums = [arg for group, parts in fates.items() for arg in _sums(group, parts)]
        reply = self._scripts.call("commit", epoch, batch, int(changed), *sums)
        return self._fenced(reply, epoch)

    def expire(self, boot: str) -> int:
        """End groups whose deadline has passed; how many. Raises Gone."""
        ended = int(self._scripts.call("expire", boot))
        if ended < 0:
            raise Gone(f"boot {boot} was declared dead: start under a new boot")
        return ended

    def finish(self, epoch: int, outcome: Literal["done", "failed"], reason: str) -> None:
        """End the run: what is alive is cancelled, and every beat hears of it. The first stands."""
        self._fenced(self._scripts.call("finish", epoch, outcome, reason), epoch)

    def _fenced(self, reply: bytes, epoch: int) -> str:
        if reply == b"FENCED":
            raise Fenced(f"epoch {epoch} of {self._scripts.keys.prefix} is over: another leads")
        return reply.decode()

    def _decode(self, group: str, fields: Fields) -> Group | None:
        try:
            return _group(fields)
        except DecodeError as exc:
            log.warning("unreadable group=%s %s", group, exc)
            if self._epoch is not None:
                self._scripts.call("refuse", self._epoch, str(exc), group, 0)
            return None


def _sums(group: str, fates: Fates) -> list[Arg]:
    flat: list[Arg] = [group, len(fates)]
    for fate, (members, tokens) in fates.items():
        flat += [fate, members, tokens]
    return flat


def _group(fields: Fields) -> Group:
    members, failed = {}, {}
    for m in range(int(fields[b"n"])):
        if completion := fields.get(b"c:%d" % m):
            score = fields.get(b"r:%d" % m)
            members[m] = Member(
                completion=decode(Completion, completion),
                score=decode(Score, score) if score else None,
            )
        if reason := fields.get(b"f:%d" % m):
            failed[m] = reason.decode()
    return Group(
        prompt=decode(Prompt, fields[b"prompt"]),
        start_step=int(fields.get(b"start", 0)),
        members=members,
        failed=failed,
    )
