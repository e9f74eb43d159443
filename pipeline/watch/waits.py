"""Who waits for whom: what a process can wait for, by name, and which services can end that wait.

A service that waits is followed to those that it waits for, and on from there, until somebody is
found who cannot act (it is starved), or is at work (all is well), or was met before (a circle).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from pipeline.watch.finding import megabytes
from pipeline.watch.look import Snapshot, present
from pipeline.watch.seen import SERVICES, Seen

WINDOW, MEMORY, END = "window", "memory", "the run's end"
WEIGHTS, PROMPTS = "weights", "prompts"
FRESHER, QUARANTINE = "fresher weights", "the end of its quarantine"
COMPLETIONS, SCORERS = "completions", "scorers"
GROUPS, OLDER_GROUPS = "groups", "older groups to be done"

SURE_SECONDS = 3.0
"""A wait that is shorter may be how a healthy run breathes."""
VERDICT_SECONDS = 5.0
"""Without any verdict of a scorer for so long, scoring is held up by it."""


class Culprit(NamedTuple):
    """Somebody who cannot act, and why: `inference-0`, `silent for 6 s`."""

    who: str
    why: str

    def __str__(self) -> str:
        return f"{self.who} ({self.why})"


class Stage(NamedTuple):
    """One service: who of it can act, what all of these wait for, and what keeps it from acting.

    `waits` is empty where one of them is at work; `seconds` is the least that one has waited.
    """

    able: Sequence[Seen]
    waits: frozenset[str]
    seconds: float
    culprits: Sequence[Culprit]


def stages(snapshot: Snapshot) -> dict[str, Stage]:
    """Every service as it stands."""
    processes = present(snapshot)
    return {
        name: _stage(snapshot, name, [seen for seen in processes if seen.beat.service == name])
        for name in SERVICES
    }


def movers(snapshot: Snapshot, what: str) -> tuple[str, ...]:
    """The services that can end a wait for this; none where nobody else can."""
    places, holders = snapshot.places, _holders(snapshot)
    admits = () if snapshot.state.eof else ("prompting",)
    if what in (GROUPS, OLDER_GROUPS):
        return tuple(name for name in holders if name != "training") or admits
    if what == PROMPTS and places.alive < snapshot.window and admits:
        return admits
    if what in (PROMPTS, WINDOW):
        return holders or ("training",)
    if what in (WEIGHTS, FRESHER, END):
        return ("training",)
    return ("inference",) if what == COMPLETIONS else ()


def starved_by(snapshot: Snapshot, service: str, among: Mapping[str, Stage]) -> list[Culprit]:
    """Who keeps it waiting and cannot act, however many wait for each other in between."""
    found: dict[Culprit, None] = {}
    met, to_visit = {service}, [service]
    while to_visit:
        for mover in _movers_of(snapshot, among[to_visit.pop()]):
            found |= dict.fromkeys(among[mover].culprits)
            if mover not in met and not among[mover].culprits:
                met.add(mover)
                to_visit.append(mover)
    return list(found)


def circle(snapshot: Snapshot, among: Mapping[str, Stage]) -> list[tuple[str, str, str]]:
    """Services that wait for nobody but each other: who, for what, from whom; empty where none do.

    Those that can still move are struck out until only services are left whose every way on leads
    to one another.
    """
    stuck = {name for name, stage in among.items() if stage.seconds >= SURE_SECONDS}
    while moving := {name for name in stuck if not _is_stuck(snapshot, among[name], stuck)}:
        stuck -= moving
    return _round(snapshot, among, stuck)


def _is_stuck(snapshot: Snapshot, stage: Stage, stuck: set[str]) -> bool:
    """One that waits for nobody (its model, say) can move, whatever others of its service do."""
    on = [movers(snapshot, what) for what in stage.waits]
    return all(on) and not stage.culprits and stuck.issuperset(chain.from_iterable(on))


def _round(
    snapshot: Snapshot, among: Mapping[str, Stage], stuck: set[str]
) -> list[tuple[str, str, str]]:
    """From the foot of the stream on, until the first is met again."""
    path: list[tuple[str, str, str]] = []
    name = next((name for name in reversed(SERVICES) if name in stuck), "")
    while name and name not in [who for who, _, _ in path]:
        what = min(among[name].waits)
        path.append((name, what, movers(snapshot, what)[0]))
        name = path[-1][2]
    first = next((n for n, (who, _, _) in enumerate(path) if who == name), 0)
    return path[first:]


def _movers_of(snapshot: Snapshot, stage: Stage) -> list[str]:
    return [mover for what in sorted(stage.waits) for mover in movers(snapshot, what)]


def _holders(snapshot: Snapshot) -> tuple[str, ...]:
    """The services at which groups are."""
    places = snapshot.places
    counts = {"inference": places.prompts, "scoring": places.open, "training": places.groups}
    return tuple(name for name, count in counts.items() if count)


def _stage(snapshot: Snapshot, service: str, processes: list[Seen]) -> Stage:
    able = [seen for seen in processes if not unable(seen)]
    waits = {idle_for(seen) for seen in able}
    idle = frozenset() if "" in waits else frozenset(waits)
    return Stage(
        able=able,
        waits=idle,
        seconds=min((seen.waited_seconds for seen in able), default=0.0) if idle else 0.0,
        culprits=[*_culprits(service, processes, able), *_held_up(snapshot, able)],
    )


def _culprits(service: str, processes: list[Seen], able: list[Seen]) -> Iterator[Culprit]:
    """Processes that cannot act, where nobody else of the service can, or they hold its work."""
    if not processes:
        yield Culprit(service, "no process of it is alive")
    for seen in processes:
        if (why := unable(seen)) and (seen.held or not able):
            yield Culprit(seen.beat.instance, why)


def _held_up(snapshot: Snapshot, able: list[Seen]) -> Iterator[Culprit]:
    """What is no process, and keeps one from acting all the same."""
    for seen in able:
        if hangs(seen):
            why = f"no verdict for {seen.waited_seconds:.0f} s"
            yield Culprit(f"the scorers of {seen.beat.instance}", why)
        if seen.beat.waiting_for == MEMORY and sure(seen):
            yield Culprit("Redis", memory(snapshot))


def idle_for(seen: Seen) -> str:
    """What a process waits for, empty while it is at work: so it is while its scorers are."""
    what = seen.beat.waiting_for or ""
    return "" if what == SCORERS and not hangs(seen) else what


def sure(seen: Seen) -> bool:
    """Whether it has waited for longer than a healthy process may."""
    return seen.waited_seconds >= SURE_SECONDS


def hangs(seen: Seen) -> bool:
    """Whether its scorers have given no verdict for long."""
    return seen.beat.waiting_for == SCORERS and seen.waited_seconds > VERDICT_SECONDS


def unable(seen: Seen) -> str:
    """Why a process cannot act; empty where it can."""
    if seen.silent:
        return f"silent for {seen.age_seconds:.0f} s"
    if seen.stalled:
        return f"no turn of its loop for {seen.turn_seconds:.0f} s"
    return f"quarantined: {seen.quarantined}" if seen.quarantined else ""


def memory(snapshot: Snapshot) -> str:
    """How full the server is."""
    server = snapshot.server
    of = f" of {megabytes(server.limit_bytes)}" if server.limit_bytes else ""
    return f"{megabytes(server.used_bytes)}{of} are used"
