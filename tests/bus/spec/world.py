"""The nouns of the protocol, and the ledger. Times are milliseconds of the server's clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

POOL = "pool"
DAY_MS, TOMBSTONE_MS = 86_400_000, 600_000


@dataclass(frozen=True)
class Span:
    version: int
    tokens: int
    boot: str


Spans = tuple[Span, ...]


@dataclass
class Settings:
    window: int
    per_step: int
    lag_max: int
    members: int
    enough: int
    lease_ms: int
    deadline_ms: int
    release: int = 0


@dataclass
class Boot:
    """`beat` is 0 once it was declared dead; `since` when its beats have been unbroken."""

    service: str
    instance: str
    beat: int
    seen: int
    since: int
    died: int | None = None
    has_taken: bool = False
    quarantined: str = ""
    rejected: str = ""


@dataclass
class Ticket:
    """Work to do: a group's prompt (member None), or one completion. Owner None: nobody read it."""

    number: int
    group: str
    member: int | None = None
    owner: str | None = None
    strikes: int = 0


@dataclass
class Member:
    """`status` is "" (to do), delivered, scored, spoilt (delivered, then failed) or failed.

    `tokens` were booked as generated and have no fate yet; `is_held`: its completion is stored.
    """

    status: str = ""
    tokens: int = 0
    is_held: bool = False
    chunks: list[Spans] = field(default_factory=list)
    num_chunks: int = 0
    saved: int = 0
    fate: str = ""
    reason: str = ""
    lone_strikes: int = 0
    outcome: float | None = None

    @property
    def is_over(self) -> bool:
        return self.status in ("scored", "spoilt", "failed")


@dataclass
class Evaluation:
    """Of held-out groups: `cursor` of `size` were admitted, pinned to `version`; -1: there is none.

    That of version `last` was the last to end; `forgone` ended without a word. `outcomes` are by
    group, `boots` whose answers they are. Their ledger is their own.
    """

    version: int = -1
    size: int = 0
    cursor: int = 0
    last: int = -1
    forgone: int = 0
    outcomes: dict[int, list[float | None]] = field(default_factory=dict)
    boots: set[str] = field(default_factory=set)
    ledger: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass
class Group:
    """`state` is open, ready or closed; closed is a tombstone until `ends` (None: for good).

    `marks` are the replies to deliveries, `savers` who saved which chunk, `booked` how many tokens
    of which boot were booked as generated; `owed` was booked for deliveries that the server lost,
    `spent` by the release, for the members that it left out. A held-out one is of version `pin`.
    """

    name: str
    seq: int
    members: list[Member]
    state: str = "open"
    start: int | None = None
    due: int | None = None
    progress: str | None = None
    lone_strikes: int = 0
    marks: dict[tuple[int, str], str] = field(default_factory=dict)
    savers: dict[tuple[int, int], str] = field(default_factory=dict)
    booked: dict[tuple[int, str], int] = field(default_factory=dict)
    owed: tuple[int, int] = (0, 0)
    spent: dict[str, tuple[int, int]] = field(default_factory=dict)
    ends: int | None = None
    pin: int | None = None

    @property
    def todo(self) -> list[int]:
        return [m for m, member in enumerate(self.members) if not member.status]


@dataclass
class World:
    """All that the server holds of a run. All ticket lists are in order of issue.

    `versions` have their steps and fingerprints; `manifest` is the newest, and who sends it.
    `window` is in force since the trainer said so at batch `narrowed_at`; None: the run's own.
    """

    settings: Settings
    now: int = 1_000_000_000
    cursor: int = 0
    admitted_from: int = -1
    eof: bool = False
    batch: int = 0
    step: int = 0
    version: int = -1
    epoch: int = 0
    trainer: str = ""
    stop: str = ""
    reason: str = ""
    boots: dict[str, Boot] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    prompts: list[Ticket] = field(default_factory=list)
    completions: list[Ticket] = field(default_factory=list)
    ready: list[str] = field(default_factory=list)
    versions: dict[int, tuple[int, str]] = field(default_factory=dict)
    manifest: tuple[int, int] | None = None
    proofs: set[tuple[str, int]] = field(default_factory=set)
    ledger: Counter[tuple[str, str]] = field(default_factory=Counter)
    letters: list[tuple[str, str, str, str]] = field(default_factory=list)
    num_tickets: int = 0
    window: int | None = None
    narrowed_at: int = 0
    evaluation: Evaluation = field(default_factory=Evaluation)
    held_out_prompts: list[Ticket] = field(default_factory=list)

    @property
    def alive(self) -> list[Group]:
        """The run's own groups: each holds a place of the window."""
        return [g for g in self.groups.values() if g.state != "closed" and g.pin is None]

    @property
    def held_out(self) -> list[Group]:
        """Held-out groups without an end."""
        return [g for g in self.groups.values() if g.state != "closed" and g.pin is not None]

    def stream(self, name: str) -> list[Ticket]:
        return {
            "prompts": self.prompts,
            "completions": self.completions,
            "eval:prompts": self.held_out_prompts,
        }[name]

    def lane_of(self, stream: str, number: int) -> str:
        """Prompts' desk has two streams: held-out groups have one of their own."""
        return "eval:prompts" if self.numbered("eval:prompts", number) else stream

    def issue(self, stream: str, group: str, member: int | None = None) -> None:
        self.num_tickets += 1
        self.stream(stream).append(Ticket(self.num_tickets, group, member))

    def ticket_of(self, stream: str, group: str, member: int | None = None) -> Ticket | None:
        found = [t for t in self.stream(stream) if (t.group, t.member) == (group, member)]
        return found[0] if found else None

    def numbered(self, stream: str, number: int) -> Ticket | None:
        found = [t for t in self.stream(stream) if t.number == number]
        return found[0] if found else None

    def settle(self, stream: str, ticket: Ticket | None) -> None:
        if ticket in self.stream(stream):
            self.stream(stream).remove(ticket)

    def book(self, fate: str, members: int, tokens: int, *, of: Group | None = None) -> None:
        """`of` a held-out group in the ledger of those."""
        is_pinned = of is not None and of.pin is not None
        ledger = self.evaluation.ledger if is_pinned else self.ledger
        ledger[fate, "members"] += members
        ledger[fate, "tokens"] += tokens

    def is_fenced(self, epoch: int) -> bool:
        return epoch != self.epoch

    def is_proven(self, spans: Spans) -> bool:
        return all((s.boot, s.version) in self.proofs for s in spans)

    def pass_time(self, ms: int) -> None:
        """Nothing acts meanwhile. Tombstones go when their time is over."""
        self.now += ms
        self.groups = {
            name: g for name, g in self.groups.items() if g.ends is None or g.ends > self.now
        }
