"""One look at a run, and what it means in words. Pure; the look itself is taken by the bus."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from pipeline.ledger import Fates, Sum, in_flight
from pipeline.messages import Beat

SERVICES = ("prompting", "inference", "scoring", "training")
ENDED = "ended"


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


class Seen(Struct, frozen=True, kw_only=True):
    """A process as its last beat left it. `held` counts its leases; `alive` is False once dead."""

    beat: Beat
    age_seconds: float
    held: int = 0
    quarantined: str = ""
    rejected: str = ""
    alive: bool = True


class Snapshot(Struct, frozen=True, kw_only=True):
    """One consistent look at a run."""

    state: State
    places: Places
    ledger: Fates
    window: int
    per_step: int
    lag_max: int
    lease_seconds: float
    beats: tuple[Seen, ...] = ()
    dead_letters: int = 0


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


def explain(snapshot: Snapshot) -> list[str]:
    """Who waits for whom and what is wrong, the worst first; one sentence each."""
    if snapshot.state.stop:
        why = f": {snapshot.state.reason}" if snapshot.state.reason else ""
        return [f"the run is {snapshot.state.stop}{why}", *_told(imbalance(snapshot))]
    return [
        *_told(imbalance(snapshot)),
        *troubles(snapshot),
        *_letters(snapshot),
        *_waits(snapshot, _present(snapshot)),
    ]


def troubles(snapshot: Snapshot) -> list[str]:
    """What is wrong with the processes of a run that goes on: missing, silent, quarantined."""
    processes = _present(snapshot)
    return [*_missing(processes), *(s for seen in processes for s in _troubles(seen))]


def newest(beats: Iterable[Seen]) -> list[Seen]:
    """The newest boot of each instance, in the order of the stream."""
    found: dict[str, Seen] = {}
    for seen in sorted(beats, key=lambda s: s.age_seconds):
        found.setdefault(seen.beat.instance, seen)
    return sorted(found.values(), key=lambda s: (_place(s.beat.service), s.beat.instance))


def imbalance(snapshot: Snapshot) -> str:
    """What is wrong with the ledger; empty where it balances.

    While groups are alive, what has no fate yet may be theirs: then only a negative rest tells.
    """
    rest = in_flight(snapshot.ledger)
    if rest < 0:
        return f"the ledger does not balance: {-rest} tokens have a fate and were never generated"
    if rest > 0 and snapshot.places.alive == 0:
        return f"the ledger does not balance: {rest} tokens have no fate, and nothing is alive"
    return ""


def _told(sentence: str) -> list[str]:
    return [sentence] if sentence else []


def _place(service: str) -> int:
    return SERVICES.index(service) if service in SERVICES else len(SERVICES)


def _present(snapshot: Snapshot) -> list[Seen]:
    """The newest boots, without those that said goodbye."""
    return [seen for seen in newest(snapshot.beats) if seen.beat.waiting_for != ENDED]


def _absent(processes: list[Seen]) -> list[str]:
    alive = {seen.beat.service for seen in processes if seen.alive}
    return [service for service in SERVICES if service not in alive]


def _missing(processes: list[Seen]) -> list[str]:
    return [f"no process of {service} is alive" for service in _absent(processes)]


def _troubles(seen: Seen) -> list[str]:
    name, out = seen.beat.instance, []
    if not seen.alive:
        leases = f"holds {_count(seen.held, 'lease')} and " if seen.held else ""
        out.append(f"{name} {leases}has been silent for {seen.age_seconds:.0f} s")
    if seen.quarantined:
        out.append(f"{name} is quarantined: {seen.quarantined}")
    if seen.rejected:
        out.append(f"{name} could not stage {seen.rejected}")
    return out


def _letters(snapshot: Snapshot) -> list[str]:
    letters = snapshot.dead_letters
    return [f"{_count(letters, 'dead letter')} to read"] if letters else []


def _waits(snapshot: Snapshot, processes: list[Seen]) -> list[str]:
    out = []
    waits = _waited_for(processes)
    for service in sorted(waits, key=_place):
        if len(waits[service]) == 1 and (what := next(iter(waits[service]))) is not None:
            out.append(f"{service} waits for {what}{_where(snapshot, what)}")
        else:
            out += [
                f"{seen.beat.instance} waits for {seen.beat.waiting_for}"
                for seen in processes
                if seen.alive and seen.beat.service == service and seen.beat.waiting_for
            ]
    return out


def _waited_for(processes: list[Seen]) -> dict[str, set[str | None]]:
    out: dict[str, set[str | None]] = {}
    for seen in processes:
        if seen.alive:
            out.setdefault(seen.beat.service, set()).add(seen.beat.waiting_for)
    return out


def _where(snapshot: Snapshot, what: str) -> str:
    places = snapshot.places
    if what == "groups":
        return f": {places.prompts} in generation, {places.open} in scoring, {places.groups} ready"
    if what == "window":
        return f": {places.alive} of {snapshot.window} places are out"
    return ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
