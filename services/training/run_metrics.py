"""The numbers of the run, rather than of a process: places, leases, lag on the way, the ledger.

The trainer exports them, since a run has exactly one; it looks with each of its beats. While there
is no trainer there are none, and an alert says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from pipeline.bus.bus import Bus
from pipeline.ledger import FATES, GENERATED, Sum, in_flight
from pipeline.metrics import Metrics
from pipeline.protocols import DEVICES
from pipeline.watch import (
    SERVICES,
    Evaluation,
    Seen,
    Snapshot,
    by_label,
    imbalance,
    newest,
    processes,
    total,
)

PLACES = ("prompts", "open", "groups")
WAYS = ("flight", "queue")
STATES = ("alive", "silent", "quarantined")

Steps = Counter[int]
"""How many groups were started with weights of each step."""


def looking(metrics: Metrics, bus: Bus, *, target_steps: int) -> Callable[[], None]:
    """What to call for another look. The first is taken here, before anything can be scraped.

    Else the sums of a run that goes on would seem to have grown from 0 in a moment.
    """
    beside = metrics.alike("run")
    look = partial(RunNumbers(beside, target_steps=target_steps).look, bus)
    look()
    metrics.serve(beside)
    return look


class RunNumbers:
    """What a look at the run tells. Counters follow the run's own sums, and never go back."""

    def __init__(self, metrics: Metrics, *, target_steps: int) -> None:
        self._known: dict[str, float] = {}
        metrics.gauge("target_steps", "Steps that the run is to make.").set(target_steps)
        self.looked = metrics.gauge("looked_timestamp_seconds", "When the trainer last looked.")
        self.steps = metrics.gauge("steps", "Optimizer steps that the run has made.")
        self.version = metrics.gauge("version", "The newest version that was announced.")
        self.batch = metrics.gauge("batch_groups", "Groups that make a step.")
        self._declare_places(metrics)
        self._declare_ledger(metrics)

    def _declare_places(self, metrics: Metrics) -> None:
        self.window = metrics.gauge("window_groups", "Groups that may be alive.")
        self.places = metrics.gauge_by(
            "place_groups",
            "Groups alive: to be generated, to be scored (open), or whole (groups).",
            place=PLACES,
        )
        self.lag_limit = metrics.gauge("lag_limit_steps", "The lag that is allowed, `lag.max`.")
        self.lag_mean = metrics.gauge_by(
            "lag_mean_steps", "Mean lag of the oldest tokens of groups on the way.", way=WAYS
        )
        self.lag_max = metrics.gauge_by(
            "lag_max_steps", "Lag of the oldest token in flight, and of whole groups.", way=WAYS
        )
        self.leases = metrics.gauge_by(
            "leases", "Tickets taken, and not settled.", service=("inference", "scoring")
        )
        self.processes = metrics.gauge_by(
            "processes", "Processes that have not said goodbye.", service=SERVICES, state=STATES
        )
        self.left = metrics.gauge(
            "evaluation_left_groups", "Held-out groups of an evaluation that have no end yet."
        )
        self.idle = metrics.gauge(
            "evaluation_idle_seconds", "Since one of them was admitted or ended; 0: there is none."
        )
        self.used = metrics.gauge("redis_used_bytes", "Memory that Redis uses.")
        self.limit = metrics.gauge("redis_limit_bytes", "Its maxmemory; 0: none.")

    def _declare_ledger(self, metrics: Metrics) -> None:
        self.letters = metrics.counter("dead_letters", "Members and groups that were given up.")
        self.generated = metrics.counter("generated_tokens", "Tokens that entered the ledger.")
        self.tokens = metrics.counter_by("fate_tokens", "Tokens by how they ended.", fate=FATES)
        self.members = metrics.counter_by("fate_members", "Members by how they ended.", fate=FATES)
        self.seconds = metrics.counter_by(
            "fate_device_seconds",
            "Core- or GPU-seconds of generation by how the tokens ended: tokens times what one "
            "costs on average.",
            fate=FATES,
            device=DEVICES,
        )
        self.in_flight = metrics.gauge("in_flight_tokens", "Tokens generated, without a fate yet.")
        self.unbalanced = metrics.gauge(
            "unbalanced_tokens", "Tokens by which the ledger is out of balance; 0 is sound."
        )

    def look(self, bus: Bus) -> None:
        """Once more. Raises SluiceError where the server does not answer."""
        self.observe(bus.snapshot(), *bus.start_steps())

    def observe(self, snapshot: Snapshot, flight: Steps, queue: Steps) -> None:
        """One look; `flight` are the groups that engines have begun, `queue` those that are whole.

        A lag is that of the oldest token, by the step that a group was started at.
        """
        state, server = snapshot.state, snapshot.server
        self.looked.set(snapshot.at_seconds)
        self.steps.set(state.step)
        self.version.set(state.version)
        self.batch.set(snapshot.per_step)
        self.used.set(server.used_bytes)
        self.limit.set(server.limit_bytes)
        self._observe_window(snapshot)
        for way, started in zip(WAYS, (flight, queue), strict=True):
            lags = Counter({max(0, state.step - at): n for at, n in started.items()})
            self.lag_mean.labels(way=way).set(_mean(lags))
            self.lag_max.labels(way=way).set(max(lags, default=0))
        self._observe_evaluation(snapshot.evaluation)
        self._observe_processes(newest(snapshot.beats))
        self._observe_ledger(snapshot)

    def _observe_window(self, snapshot: Snapshot) -> None:
        self.window.set(snapshot.window)
        self.lag_limit.set(snapshot.lag_max)
        for place in PLACES:
            self.places.labels(place=place).set(getattr(snapshot.places, place))

    def _observe_evaluation(self, standing: Evaluation) -> None:
        self.left.set(standing.left)
        self.idle.set(standing.idle_seconds if standing.version >= 0 else 0.0)

    def _observe_processes(self, seen: Iterable[Seen]) -> None:
        states, leases = Counter[tuple[str, str]](), Counter[str]()
        for one in seen:
            if not one.ended:
                states[one.beat.service, _state(one)] += 1
            leases[one.beat.service] += one.held
        for service in SERVICES:
            for state in STATES:
                self.processes.labels(service=service, state=state).set(states[service, state])
        for service in ("inference", "scoring"):
            self.leases.labels(service=service).set(leases[service])

    def _observe_ledger(self, snapshot: Snapshot) -> None:
        ledger, prices = snapshot.ledger, _prices(processes(snapshot.beats, "inference"))
        self.letters.inc(self._grown("letters", snapshot.dead_letters))
        self.generated.inc(self._grown(GENERATED, ledger.get(GENERATED, Sum(0, 0)).tokens))
        for fate, sums in ledger.items():
            if fate != GENERATED:
                tokens = self._grown(f"tokens of {fate}", sums.tokens)
                self.tokens.labels(fate=fate).inc(tokens)
                self.members.labels(fate=fate).inc(self._grown(f"members of {fate}", sums.members))
                for kind, price in prices.items():
                    self.seconds.labels(fate=fate, device=kind).inc(tokens * price)
        self.in_flight.set(in_flight(ledger))
        self.unbalanced.set(abs(imbalance(snapshot)))

    def _grown(self, name: str, now: float) -> float:
        """By how much since the last look; a server that was put back takes nothing back."""
        before, self._known[name] = self._known.get(name, 0.0), now
        return max(0.0, now - before)


def _state(seen: Seen) -> str:
    if seen.silent:
        return "silent"
    return "quarantined" if seen.quarantined else "alive"


def _mean(counts: Mapping[int, int]) -> float:
    number = sum(counts.values())
    return sum(value * n for value, n in counts.items()) / number if number else 0.0


def _prices(engines: Sequence[Seen]) -> dict[str, float]:
    """Device seconds that a token has cost, by kind of device, over all engines there ever were."""
    tokens = total(engines, "tokens") + total(engines, "lost_tokens")
    spent = by_label(engines, "device_seconds")
    return {kind: spent.get(kind, 0.0) / tokens if tokens else 0.0 for kind in DEVICES}
