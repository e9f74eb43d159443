"""One moment of a run, with what is told beside its snapshot: what the terminal shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.watch import Seen, Snapshot, by_label, explain, newest, processes
from services.view.rates import Rates

LAG_TOKENS = "lag_tokens"


class Scene(NamedTuple):
    """`steps` is how many the run is to make, None where that is not known.

    `where` is the server, `advice` what would help, `events` what happened to the processes,
    `note` what goes on besides, `hint` how to leave. `starting`: no process that was started has
    beaten yet.
    """

    name: str
    snapshot: Snapshot
    rates: Rates = Rates()
    steps: int | None = None
    advice: Sequence[str] = ()
    where: str = ""
    events: Sequence[str] = ()
    note: str = ""
    hint: str = ""
    starting: bool = False

    @property
    def said(self) -> list[str]:
        """Who waits for whom, once there is anybody."""
        return ["the processes start"] if self.starting else sentences(self.snapshot)


def sentences(snapshot: Snapshot) -> list[str]:
    """Who waits for whom, once there is anybody."""
    if not snapshot.beats and not snapshot.state.stop:
        return ["no process has started yet"]
    return explain(snapshot) or ["nobody waits"]


def trainer(snapshot: Snapshot) -> Seen | None:
    """The trainer that beat last, should there be one."""
    trainers = [seen for seen in newest(snapshot.beats) if seen.beat.service == "training"]
    return min(trainers, key=lambda seen: seen.age_seconds, default=None)


def rewards(snapshot: Snapshot) -> tuple[tuple[float, float], ...]:
    """The reward over the steps, thinned, as the trainer tells it."""
    last = trainer(snapshot)
    return last.beat.curves.get("reward", ()) if last else ()


def held_out(snapshot: Snapshot) -> tuple[tuple[float, float], ...]:
    """The mean outcome of held-out samples by version, thinned, as the trainer tells it."""
    last = trainer(snapshot)
    return last.beat.curves.get("held_out", ()) if last else ()


def gauge(snapshot: Snapshot, name: str) -> float | None:
    """A number of the trainer's last step; None before the first."""
    last = trainer(snapshot)
    value = last.beat.gauges.get(name) if last else None
    return value if value is not None and last and last.beat.totals.get("steps") else None


def lags(snapshot: Snapshot) -> dict[str, float]:
    """Tokens trained, by their lag, over the run."""
    return by_label(processes(snapshot.beats, "training"), LAG_TOKENS)
