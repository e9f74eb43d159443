"""One look at a run, as the bus takes it. What it means is said in `explain` and `advice`."""

from __future__ import annotations

from msgspec import Struct

from pipeline.ledger import Fates, Sum
from pipeline.watch.seen import Seen, newest


class State(Struct, frozen=True, kw_only=True):
    """Where a run stands. `version` is -1 before the first; `stop` is "", "done" or "failed"."""

    cursor: int = 0
    eof: bool = False
    batch: int = 0
    step: int = 0
    version: int = -1
    epoch: int = 0
    trainer: str = ""
    stop: str = ""
    reason: str = ""


class Places(Struct, frozen=True, kw_only=True):
    """Groups alive, each in exactly one place; `started` of them were taken by an engine.

    `prompts`: some member is to do; `open`: every member is delivered or failed, not all scored;
    `groups`: whole, and waiting for training.
    """

    prompts: int = 0
    open: int = 0
    groups: int = 0
    started: int = 0

    @property
    def alive(self) -> int:
        """Places of the window that are out."""
        return self.prompts + self.open + self.groups


class Server(Struct, frozen=True, kw_only=True):
    """Redis: its memory (limit 0 is none), and what keeps it from saving its data, or nothing.

    A server with a fault refuses writes as long as it is there.
    """

    used_bytes: int = 0
    limit_bytes: int = 0
    fault: str = ""


class Evaluation(Struct, frozen=True, kw_only=True):
    """Held-out groups of one version, `cursor` admitted of `size`, `alive` of them without an end.

    `version` is -1 while there is none; that of version `last` was the last to end, and `forgone`
    never could. Of `prompts` groups some member is to do. `idle_seconds` ago a group was admitted
    or ended. Their tokens are in a `ledger` of their own. `data` is the digest of the held-out set.
    """

    version: int = -1
    size: int = 0
    cursor: int = 0
    alive: int = 0
    prompts: int = 0
    last: int = -1
    forgone: int = 0
    idle_seconds: float = 0.0
    ledger: Fates = {}
    data: str = ""

    @property
    def left(self) -> int:
        """Groups that have no end yet, admitted or not."""
        return self.size - self.cursor + self.alive if self.version >= 0 else 0

    @property
    def is_complete(self) -> bool:
        """Whether all of it is graded, and nobody has taken note of it."""
        return self.version >= 0 and self.left == 0


class Snapshot(Struct, frozen=True, kw_only=True):
    """One consistent look at a run, at `at_seconds` of the server's clock.

    `window` is in force, `window_most` what the run was made with: `lag.control` may narrow it.
    `members` is how many a group has; `completions` were delivered, and have no score yet.
    """

    state: State
    places: Places
    ledger: Fates
    window: int
    per_step: int
    lag_max: int
    lease_seconds: float
    beats: tuple[Seen, ...] = ()
    dead_letters: int = 0
    at_seconds: float = 0.0
    members: int = 1
    completions: int = 0
    server: Server = Server()
    window_most: int = 0
    evaluation: Evaluation = Evaluation()


class Leases(Struct, frozen=True, kw_only=True):
    """What one owner holds: tickets of prompts and of completions.

    The owner `pool` holds what was handed back or left by the dead, and waits for the next taker.
    `silent_seconds` is None for an owner that was declared dead (and for `pool`), which `alive`
    speaks of as well; its tickets go to whoever asks next.
    """

    owner: str
    prompts: int
    completions: int
    silent_seconds: float | None
    alive: bool


class Audit(Struct, frozen=True, kw_only=True):
    """Every group alive, looked at; `faults` are sentences, and empty where the run is sound.

    `places` were counted group by group, `held` is what these groups hold and the ledger lacks. A
    large run is looked at in pieces: `exact` says whether the ledger stood still meanwhile, without
    which it was not compared. `overdue` groups are past their deadline; `oldest_seconds` is the age
    of the oldest ticket that nobody has taken, by stream, and how long the next group to be trained
    has been ready.
    """

    alive: int
    window: int
    places: Places
    held: Sum
    exact: bool
    overdue: int
    oldest_seconds: dict[str, float]
    leases: tuple[Leases, ...]
    faults: tuple[str, ...]


class Letter(Struct, frozen=True, kw_only=True):
    """Work that was given up. `member` is empty where it was all of a group, or a prompt."""

    stream: str
    group: str
    member: str
    boot: str
    reason: str
    age_seconds: float


def present(snapshot: Snapshot) -> list[Seen]:
    """The newest boots, without those that said goodbye."""
    return [seen for seen in newest(snapshot.beats) if not seen.ended]


def keepers(snapshot: Snapshot) -> dict[str, int]:
    """The version that each engine keeps for an evaluation, of those that may take its work."""
    able = [seen for seen in present(snapshot) if seen.alive and not seen.quarantined]
    return {s.beat.instance: s.beat.pinned for s in able if s.beat.pinned >= 0}
