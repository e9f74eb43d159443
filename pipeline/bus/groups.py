"""The desk of training: leads a run, collects whole groups, and commits what became of them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from pipeline.bus.blobs import Blobs
from pipeline.bus.leading import Leading
from pipeline.bus.look import read_started
from pipeline.bus.scripts import Arg, Scripts
from pipeline.codec import decode
from pipeline.errors import DecodeError, Gone
from pipeline.ledger import Fates, Sum
from pipeline.messages import Completion, Group, Member, Prompt, Score

log = logging.getLogger(__name__)
Fields = dict[bytes, bytes]
ALL = 1 << 31
NOTHING = Sum(0, 0)


class Ticket(Struct, frozen=True):
    """A group that is ready; `start_step` is the step of the weights that first took it."""

    group: str
    seq: int
    start_step: int


class Ready(Struct, frozen=True):
    """One look at the run: `batch` records are committed, `groups` wait, strictly oldest first.

    `alive` groups hold a place, the `num_ready` ones among them. Nothing can come any more once
    `eof` holds and no other is alive.
    """

    batch: int
    groups: list[Ticket]
    eof: bool
    alive: int
    num_ready: int


class Groups:
    """Ready groups. One trainer leads; every act of a former one raises Fenced."""

    def __init__(self, scripts: Scripts, leading: Leading, blobs: Blobs) -> None:
        self._scripts, self._leading, self._blobs = scripts, leading, blobs

    def lead(self, epoch: int, boot: str) -> None:
        """Become the trainer of the run; raises Fenced unless the epoch is above all before."""
        self._leading.lead(epoch, boot)

    def collect(self, epoch: int, *, limit: int | None = None) -> Ready:
        """The first `limit` ready groups by (start step, seq), and the batch, in one look."""
        most = ALL if limit is None else limit
        _, batch, eof, alive, num_ready, rows = self._leading.act("collect", epoch, most)
        return Ready(
            batch=int(batch),
            groups=[_ticket(*row) for row in zip(rows[::2], rows[1::2], strict=True)],
            eof=eof == b"1",
            alive=alive,
            num_ready=num_ready,
        )

    def started(self) -> Counter[int]:
        """How many groups alive an engine has taken, by start step."""
        return read_started(self._scripts)

    def fetch(self, groups: Sequence[str]) -> list[Group]:
        """The cargo of ready groups, in order; one that was closed meanwhile is left out.

        So is one that cannot be decoded, or whose large cargo is not there any more: the process
        that leads closes it as failed.
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
        self._leading.act("refuse", epoch, "", *_sums(group, fates))

    def commit(self, epoch: int, *, batch: int, changed: bool, fates: Mapping[str, Fates]) -> str:
        """Record `batch` is on disk and stepped: close its groups with their sums.

        "ok"; "old": it was committed before (what still lived of it is closed now); "behind": a
        record before it is missing. `changed` says whether the step made new weights.
        """
        sums = [arg for group, parts in fates.items() for arg in _sums(group, parts)]
        reply: bytes = self._leading.act("commit", epoch, batch, int(changed), *sums)
        return reply.decode()

    def narrow(self, epoch: int, *, batch: int, window: int) -> None:
        """So many groups may be alive from now on; those that are stay.

        `batch` is the trainer's own count of commits: a late repeat of an earlier word is no word.
        Held between one step's groups and the run's own window.
        """
        self._leading.act("narrow", epoch, batch, window)

    def expire(self, boot: str, *, batch: int | None = None) -> int:
        """End groups whose deadline has passed; how many. Raises Gone.

        `batch` is the trainer's own count of commits: where the run's differs none is ended, since
        the server was put back to an older state, and has to hear first what was trained.
        """
        ended = int(self._scripts.call("expire", boot, "" if batch is None else batch))
        if ended < 0:
            raise Gone(f"boot {boot} was declared dead: start under a new boot")
        return ended

    def rollback(self, epoch: int, step: int, *, undone: Sum = NOTHING) -> None:
        """The trainer lost what it made after `step`, and goes on from there.

        `undone` is what was trained since, as far as it knows, and is so no more.
        Versions of later steps are forgotten, but not their numbers: the next one is above them.
        The count of batches stays. Harmless where the run is not beyond `step`.
        """
        self._leading.act("rollback", epoch, step, *undone)

    def finish(self, epoch: int, outcome: Literal["done", "failed"], reason: str) -> None:
        """End the run: what is alive is cancelled, and every beat hears of it. The first stands."""
        while self._leading.act("finish", epoch, outcome, reason) == b"more":
            pass

    def _decode(self, group: str, fields: Fields) -> Group | None:
        try:
            return self._group(fields)
        except DecodeError as exc:
            log.warning("unreadable group=%s %s", group, exc)
            if self._leading.epoch is not None:
                self._leading.act("refuse", self._leading.epoch, str(exc), group, 0)
            return None

    def _group(self, fields: Fields) -> Group:
        read, members, failed = self._blobs.decode, {}, {}
        for m in range(int(fields[b"n"])):
            if completion := fields.get(b"c:%d" % m):
                score = fields.get(b"r:%d" % m)
                members[m] = Member(
                    completion=read(Completion, completion),
                    score=read(Score, score) if score else None,
                )
            if reason := fields.get(b"f:%d" % m):
                failed[m] = reason.decode()
        return Group(
            prompt=decode(Prompt, fields[b"prompt"]),
            start_step=int(fields.get(b"start", 0)),
            members=members,
            failed=failed,
        )


def _ticket(group: bytes, order: bytes) -> Ticket:
    start_step, seq = divmod(int(float(order)), 1 << 32)
    return Ticket(group.decode(), seq, start_step)


def _sums(group: str, fates: Fates) -> list[Arg]:
    flat: list[Arg] = [group, len(fates)]
    for fate, (members, tokens) in fates.items():
        flat += [fate, members, tokens]
    return flat
