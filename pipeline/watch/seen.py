"""One process as its last beat left it, which of many beats still count, and sums over them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from pipeline.messages import Beat

SERVICES = ("prompting", "inference", "scoring", "training")
ENDED = "ended"
SILENT_SECONDS = 5.0
"""A beat comes once a second. After so long without one something is wrong, lease or not."""
FORGOTTEN_SECONDS = 600.0
"""A process that died without a word is no news for longer, once others have its work."""
_LABEL = re.compile(r'^(\w+)\{\w+="([^"]*)"\}$')
_LABELS = re.compile(r'^(\w+)\{\w+="(.*)",\w+="(.*)"\}$')


class Seen(Struct, frozen=True, kw_only=True):
    """A process as its last beat left it. `held` counts its leases; `alive` is False once dead."""

    beat: Beat
    age_seconds: float
    held: int = 0
    quarantined: str = ""
    rejected: str = ""
    alive: bool = True

    @property
    def process(self) -> str:
        """The same for all boots of one process, and for no other's."""
        beat = self.beat
        return f"{beat.instance} {beat.pid} {beat.process}"

    @property
    def ended(self) -> bool:
        """Whether it said goodbye."""
        return self.beat.waiting_for == ENDED

    @property
    def forgotten(self) -> bool:
        """Whether it died long ago, and left nothing to be taken over."""
        return not (self.alive or self.held) and self.age_seconds > FORGOTTEN_SECONDS

    @property
    def silent(self) -> bool:
        """Whether beats are overdue of a process that never said goodbye."""
        return not self.ended and (not self.alive or self.age_seconds > SILENT_SECONDS)

    @property
    def stalled(self) -> bool:
        """Whether it beats, while its loop is caught in one turn."""
        return not self.silent and self.turn_seconds > SILENT_SECONDS

    @property
    def condition(self) -> str:
        """`ended`, `dead`, `silent`, `stalled`, `quarantined`, `waits` or `works`."""
        if self.ended:
            return ENDED
        if self.silent:
            return "silent" if self.alive else "dead"
        if self.stalled:
            return "stalled"
        return "quarantined" if self.quarantined else "waits" if self.beat.waiting_for else "works"

    @property
    def turn_seconds(self) -> float:
        """How long its loop has been in one turn; 0 in an act that was declared to be long."""
        turn = self.beat.turn_seconds
        return turn + self.age_seconds if turn else 0.0

    @property
    def waited_seconds(self) -> float:
        """How long it has waited for what it waits for; 0 where it is at work."""
        return self.beat.waited_seconds + self.age_seconds if self.beat.waiting_for else 0.0


def newest(beats: Iterable[Seen]) -> list[Seen]:
    """The newest boot of each instance that is not forgotten, in the order of the stream."""
    found: dict[str, Seen] = {}
    for seen in sorted(beats, key=lambda s: s.age_seconds):
        if not seen.forgotten:
            found.setdefault(seen.beat.instance, seen)
    return sorted(found.values(), key=lambda s: (place_of(s.beat.service), s.beat.instance))


def processes(beats: Iterable[Seen], service: str = "") -> list[Seen]:
    """The last beat of every process, of one service or of all; dead ones too.

    What they did stays done. A process that was given a new boot goes on counting, so its former
    boots say nothing more.
    """
    last: dict[str, Seen] = {}
    for seen in sorted(beats, key=lambda s: s.age_seconds):
        if service in ("", seen.beat.service):
            last.setdefault(seen.process, seen)
    return list(last.values())


def total(beats: Iterable[Seen], name: str) -> float:
    """One counter added up."""
    return sum(seen.beat.totals.get(name, 0.0) for seen in beats)


def by_label(beats: Iterable[Seen], name: str) -> dict[str, float]:
    """A counter with one label, added up by its values, as in `refused_members`."""
    out: dict[str, float] = {}
    for seen in beats:
        for label, value in labelled(seen.beat.totals, name).items():
            out[label] = out.get(label, 0.0) + value
    return out


def labelled(values: Mapping[str, float], name: str) -> dict[str, float]:
    """Of the numbers of a beat those of one metric with one label, by its values."""
    matches = [(_LABEL.match(key), value) for key, value in values.items()]
    return {match[2]: value for match, value in matches if match and match[1] == name}


def paired(values: Mapping[str, float], name: str) -> dict[tuple[str, str], float]:
    """Likewise of a metric with two labels."""
    matches = [(_LABELS.match(key), value) for key, value in values.items()]
    return {(m[2], m[3]): value for m, value in matches if m and m[1] == name}


def place_of(service: str) -> int:
    """Where a service stands in the stream; what is none comes last."""
    return SERVICES.index(service) if service in SERVICES else len(SERVICES)
