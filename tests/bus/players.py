"""Who acts in the state machine: engines, scorers, a trainer with its disk; what they remember."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from spec.groups import Sums
from spec.work import Handed, merged
from spec.world import Group, Span, Spans, World


@dataclass
class Hand:
    """A group in an engine's hands; `spans` is how far each member has come."""

    ticket: int
    group: str
    spans: dict[int, Spans]


@dataclass
class Engine:
    """It runs `version`, and keeps the weights of version `pinned` for an evaluation.

    One that `strays` answers held-out prompts by what it runs, too.
    """

    boot: str
    version: int = -1
    hands: list[Hand] = field(default_factory=list)
    pinned: int | None = None
    strays: bool = False

    def receive(self, handed: list[Handed]) -> None:
        for ticket, group, _, todo, prefixes in handed:
            self.hands.append(Hand(ticket, group, {m: prefixes.get(m, ()) for m in todo}))

    def grow(self, hand: Hand, m: int, tokens: int) -> Spans:
        """Some more tokens of a member, under the weights that the engine runs, or keeps for it."""
        is_pinned = hand.group.startswith("eval/") and not self.strays
        version = pin_of(hand.group) if is_pinned else self.version
        hand.spans[m] = merged([hand.spans[m], (Span(version, tokens, self.boot),)])
        return hand.spans[m]


def pin_of(group: str) -> int:
    """Of a held-out group."""
    return int(group.split("/")[1])


@dataclass
class Scorer:
    boot: str
    hands: list[tuple[int, str, int]] = field(default_factory=list)


@dataclass
class Record:
    """What a trainer has on its disk of one batch before it commits it."""

    changed: bool
    sums: dict[str, Sums]


@dataclass
class Trainer:
    """One disk, whatever the epoch; `made` are the versions announced from it, with their steps."""

    boot: str = "training:1"
    epoch: int = 0
    records: list[Record] = field(default_factory=list)
    made: list[tuple[int, int]] = field(default_factory=list)
    step: int = 0
    trained: Counter[str] = field(default_factory=Counter)

    def plan(self, groups: list[Group], *, changed: bool, masked: int) -> Record:
        """Every member that is scored is trained, but for some tokens of the first."""
        sums: dict[str, Sums] = {}
        for g in groups:
            scored = [member for member in g.members if member.status == "scored"]
            tokens = sum(member.tokens for member in scored)
            stale = min(masked, tokens - 1)
            sums[g.name] = {"trained": (len(scored), tokens - stale), "stale": (0, stale)}
        record = Record(changed, sums)
        self.records.append(record)
        self.trained.update(list(sums))
        return record


def made_by(world: World) -> int:
    """Members that the ledger says were generated."""
    return world.ledger["generated", "members"]
