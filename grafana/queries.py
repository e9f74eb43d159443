"""PromQL by the pieces that all dashboards use; every expression asks for the chosen run."""

from __future__ import annotations

RUN = 'run=~"$run"'
PROCESS = 'run=~"$run",instance=~"$instance"'
NEXT_TO_NOTHING = "1e-9"
"""In place of a denominator of 0: a share of nothing is 0, and no gap."""


def gauge(name: str, *, by: str = "", of: str = PROCESS, act: str = "sum") -> str:
    """A gauge, added up or otherwise reduced, by labels or over all."""
    return f"{act}{_by(by)}({_selected(name, of)})"


def latest(name: str, *, by: str = "", of: str = RUN) -> str:
    """The newest value in the time that is shown, by labels or the largest of all: a run that has
    ended shows how it ended."""
    return f"max{_by(by)}(last_over_time({_selected(name, of)}[$__range]))"


def rate(name: str, *, by: str = "", of: str = PROCESS) -> str:
    """How fast a counter grows, per second."""
    return f"sum{_by(by)}(rate({_selected(name, of)}[$__rate_interval]))"


def share(part: str, whole: str) -> str:
    """The one over the other, where the whole has no labels."""
    return f"{part} / scalar(clamp_min({whole}, {NEXT_TO_NOTHING}))"


def idle(service: str, *, of: str = PROCESS) -> str:
    """The share of a service's time that it was idle, by what it waited for."""
    seconds = rate(f"sluice_{service}_idle_seconds_total", by="cause", of=of)
    return share(seconds, rate(f"sluice_{service}_wall_seconds_total", of=of))


def activity(service: str) -> str:
    """The shares of a service's time that it was busy, idle, or neither."""
    seconds = rate(f"sluice_{service}_loop_seconds_total", by="activity")
    return share(seconds, rate(f"sluice_{service}_wall_seconds_total"))


def each(part: str, count: str) -> str:
    """How much of one there is for each of the other; a gap where there is none of the other."""
    return f"{part} / ({count} > 0)"


def quantile(share_of_all: float, name: str, *, of: str = PROCESS) -> str:
    """The value of a histogram that so many do not exceed."""
    return f"histogram_quantile({share_of_all}, {rate(f'{name}_bucket', by='le', of=of)})"


def _selected(name: str, of: str) -> str:
    """A name may bring a selector of its own, as in `tokens_total{fate="stale"}`."""
    if name.endswith("}"):
        return f"{name[:-1]},{of}}}"
    return f"{name}{{{of}}}"


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""
