"""How to split the machines: what each service can do, which one holds the others back, and what
one more of each would bring. Pure: two looks at one run are all that it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pipeline.watch.look import Places, Snapshot, State
from pipeline.watch.seen import SERVICES, Seen, processes

WINDOW = "window"
UNITS = {"prompting": "groups", "inference": "tokens", "scoring": "members", "training": "tokens"}
"""What a service makes, which is also the name of the counter that its beat carries."""
BUSY_SHARE = 0.85
"""A service that is idle for more than the rest of the time is not what the others wait for."""
LEAST_STEPS, LEAST_SECONDS = 3, 5.0
"""Between the two looks; what was measured over less is chance."""
LEAST_GAIN = 0.05
"""What is less is called nothing."""
_WALL, _IDLE = "wall_seconds", 'loop_seconds{activity="idle"}'


class Advice(Struct, frozen=True, kw_only=True):
    """By service: `rates` of one process in UNITS a second, while it is at work; `shares` of the
    time that it is at work; `counts` of processes that live; `gains`, what one more of it would add
    to the throughput at most (0.5 is half as much again), on processors of its own.

    `bottleneck` is a service, or `window` where none is at work for long enough to be one.
    """

    rates: dict[str, float]
    shares: dict[str, float]
    counts: dict[str, int]
    bottleneck: str
    gains: dict[str, float]

    @property
    def spare(self) -> list[str]:
        """Services that would keep up with one process less."""
        most = max(self.shares.values())
        return [
            name
            for name, count in self.counts.items()
            if count > 1 and self.shares[name] * count / (count - 1) < most
        ]

    def sentences(self) -> list[str]:
        """The same in words."""
        rates = [f"{name} {_figure(self.rates[name])} {UNITS[name]}/s" for name in self.rates]
        out = [f"one process at work makes: {', '.join(rates)}", self._holds_back(), self._gains()]
        for name in self.spare:
            count = self.counts[name]
            out.append(f"{name} would keep up with {count - 1} of its {count}")
        return out

    def _holds_back(self) -> str:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.shares.items())
        if self.bottleneck == WINDOW:
            return f"none is at work all the time, so the window holds them back: {shares}"
        return f"the bottleneck is {self.bottleneck}; at work: {shares} of the time"

    def _gains(self) -> str:
        gains = sorted(self.gains.items(), key=lambda item: -item[1])
        worth = [f"{name} up to {gain:.0%}" for name, gain in gains if gain >= LEAST_GAIN]
        rest = [name for name, gain in gains if gain < LEAST_GAIN]
        return f"one more would bring: {', '.join([*worth, *(f'{name} nothing' for name in rest)])}"


class Work(NamedTuple):
    """What processes did: `amount` in UNITS, and for how long they were at work, of how long."""

    amount: float
    active_seconds: float
    wall_seconds: float


def advise(before: Snapshot, now: Snapshot) -> Advice | None:
    """What the time between two looks says; None before it holds enough of steps and seconds.

    Let u be the share of the time that a service's n processes are at work: not idle, which is
    measured by their own clocks. Work that takes the time 1 now leaves u n/(n+1) of its part to
    each if there is one more, so it takes at least 1 - u/(n+1), and no less than the largest u of
    the others: by the bottleneck law, throughput <= 1 / max u (Denning and Buzen 1978, The
    operational analysis of queueing network models). gain = 1 / max(1 - u/(n+1), others) - 1.

    It is a bound, but where a few groups divide badly among processes. It takes an engine that
    decodes one sequence for as busy as one that decodes many, a trainer of many ranks for one
    process, and processors for plentiful.
    """
    done = {name: _between(before, now, name) for name in SERVICES}
    done = {name: work for name, work in done.items() if work.wall_seconds >= LEAST_SECONDS}
    is_enough = now.state.step - before.state.step >= LEAST_STEPS
    if not is_enough or not {"inference", "training"} <= done.keys():
        return None
    shares = {name: work.active_seconds / work.wall_seconds for name, work in done.items()}
    counts = {name: max(1, _alive(now, name)) for name in done}
    busiest = max(shares, key=lambda name: shares[name])
    return Advice(
        rates={name: w.amount / w.active_seconds for name, w in done.items() if w.active_seconds},
        shares=shares,
        counts=counts,
        bottleneck=busiest if shares[busiest] >= BUSY_SHARE else WINDOW,
        gains={name: _gain(name, shares, counts[name]) for name in done},
    )


def beginning(now: Snapshot) -> Snapshot:
    """The look before anything was done, for advice on all of a run so far."""
    return replace(now, state=State(), places=Places(), ledger={}, beats=())


def work_of(seen: Seen) -> Work:
    """What one process did so far."""
    totals = seen.beat.totals
    wall = totals.get(_WALL, 0.0)
    amount = totals.get(UNITS.get(seen.beat.service, ""), 0.0)
    return Work(amount, max(0.0, wall - totals.get(_IDLE, 0.0)), wall)


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _gain(service: str, shares: Mapping[str, float], count: int) -> float:
    others = max(share for name, share in shares.items() if name != service)
    return max(0.0, 1 / max(1 - shares[service] / (count + 1), others) - 1)


def _between(before: Snapshot, now: Snapshot, service: str) -> Work:
    first = _sum(processes(before.beats, service))
    last = _sum(processes(now.beats, service))
    return Work(*(b - a for a, b in zip(first, last, strict=True)))


def _sum(beats: Iterable[Seen]) -> Work:
    works = [work_of(seen) for seen in beats]
    return Work(*(sum(column) for column in zip(*works, strict=True))) if works else Work(0, 0, 0)


def _alive(snapshot: Snapshot, service: str) -> int:
    return sum(seen.alive and not seen.ended for seen in processes(snapshot.beats, service))
