"""The numbers of a report, from the last look at a run and what lies in its folder. Pure, but for
what it says of the machine and of the hour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from pipeline.bus.connection import mask
from pipeline.clock import ACTIVITIES
from pipeline.ledger import Sum, generated, in_flight
from pipeline.run import Run
from pipeline.watch import Snapshot, advise, by_label, imbalance, processes, total
from pipeline.watch.advice import beginning
from pipeline.watch.faults import CANARY_GAP
from pipeline.watch.gaming import Signs, suspicions
from services.view import totals
from services.view.journal import StepLine
from services.view.machine import machine
from services.view.outcome import Outcome
from services.view.report import Fate, Least, Point, Report
from services.view.scene import lags, sentences
from services.view.series import by_tokens, largest_lag, ratio, thin

TIMED = ("inference", "training")
Part = dict[str, Any]


class Source(NamedTuple):
    """What a report is made of. The folder may lack, or the server: then `snapshot` is None."""

    name: str
    run: Run | None
    snapshot: Snapshot | None
    lines: Sequence[StepLine]
    outcome: Outcome
    points: Sequence[Point] = ()
    started: str = ""
    restarts: Mapping[str, int] | None = None


def build(source: Source) -> Report:
    """The report of a run, also of one in flight."""
    seconds = _seconds(source)
    return Report(
        **_standing(source),
        **_learned(source.lines, source.points),
        **_lag(source),
        **_fates(source),
        **_rates(source, seconds),
        **_spent(source.snapshot),
        **_said(source),
        seconds=seconds,
        evaluation=list(source.points),
        restarts=_restarts(source),
        machine=machine(),
        config=_shown(source.run) if source.run else {},
        series=thin(source.lines),
    )


def _restarts(source: Source) -> dict[str, int] | None:
    """As whoever started the processes kept count; else as often as a name had a new process."""
    if source.restarts is not None:
        return dict(source.restarts)
    if source.snapshot is None:
        return None
    counts = Counter(seen.beat.instance for seen in processes(source.snapshot.beats))
    return {name: count - 1 for name, count in sorted(counts.items()) if count > 1}


def _standing(source: Source) -> Part:
    snapshot, lines = source.snapshot, source.lines
    step = lines[-1].step if lines else 0
    return {
        "name": source.name,
        "outcome": source.outcome.word,
        "reason": source.outcome.reason,
        "started": _began(lines) or source.started,
        "made": _hour(datetime.now(UTC)),
        "steps": snapshot.state.step if snapshot else step,
        "target_steps": source.run.steps if source.run else None,
    }


def _learned(lines: Sequence[StepLine], points: Sequence[Point]) -> Part:
    trained, signs = _trained(lines), lines[-1].gaming if lines else Signs()
    return {
        "training_reward_first": lines[0].reward if lines else None,
        "training_reward_last": lines[-1].reward if lines else None,
        "reward_first": points[0].sampled if points else None,
        "reward_last": points[-1].sampled if points else None,
        "greedy_first": points[0].greedy if points else None,
        "greedy_last": points[-1].greedy if points else None,
        "mismatch_k3": by_tokens(lines, "mismatch_k3"),
        "engine_k3": by_tokens(lines, "engine_k3"),
        "drift_k3": by_tokens(lines, "drift_k3"),
        "ess": by_tokens(lines, "ess"),
        "least_shares": _least(lines),
        "gaming": signs,
        "suspicions": [sentence for _, sentence in suspicions(signs)],
        "share_of_members_spanning_versions": ratio(
            sum(line.members_spanning for line in trained), sum(line.members for line in trained)
        ),
    }


def _least(lines: Sequence[StepLine]) -> list[Least]:
    """Where enough was counted to know."""
    if not lines:
        return []
    shares, names = lines[-1].least_share, lines[-1].least_shared
    return [Least(by, names[by], n) for by, n in shares.items() if n is not None and by in names]


def _lag(source: Source) -> Part:
    lines, counts = source.lines, Counter[int]()
    for line in _trained(lines):
        counts.update(dict(line.lag_tokens))
    snapshot = source.snapshot
    told = {str(lag): counts[lag] for lag in sorted(counts)}
    if snapshot and not told:
        told = {lag: int(tokens) for lag, tokens in lags(snapshot).items() if tokens}
    limit = snapshot.lag_max if snapshot else None
    return {
        "lag_mean": by_tokens(lines, "lag_mean"),
        "lag_max": largest_lag(lines),
        "lag_limit": source.run.lag.max if source.run else limit,
        "lag_tokens": told,
    }


def _fates(source: Source) -> Part:
    """By the ledger; without the server by what the trainer wrote down."""
    if (snapshot := source.snapshot) is None:
        refused = Counter[str]()
        for line in source.lines:
            refused.update(line.refused)
        return {
            "members_trained": round(sum(line.members for line in _trained(source.lines))),
            "members_refused": dict(sorted(refused.items())),
            "ledger": {},
            "in_flight_tokens": 0,
            "balanced": None,
        }
    ledger = snapshot.ledger
    return {
        "members_trained": ledger.get("trained", Sum(0, 0)).members,
        "members_refused": totals.refused(ledger),
        "ledger": {fate: Fate(s.members, s.tokens) for fate, s in ledger.items()},
        "in_flight_tokens": in_flight(ledger),
        "balanced": not imbalance(snapshot),
    }


def _rates(source: Source, seconds: float) -> Part:
    snapshot = source.snapshot
    if snapshot is None:
        trained = _trained(source.lines)
        tokens = sum(line.tokens for line in trained)
        return {
            "skipped_steps": len(source.lines) - len(trained),
            "flips": None,
            "tokens_per_second": {"generated": None, "trained": ratio(tokens, seconds)},
        }
    engines, trainers = (processes(snapshot.beats, service) for service in TIMED)
    done = snapshot.ledger.get("trained", Sum(0, 0)).tokens
    return {
        "skipped_steps": int(total(trainers, "skipped_steps")),
        "flips": int(total(engines, "flips")),
        "tokens_per_second": {
            "generated": ratio(generated(snapshot.ledger), seconds),
            "trained": ratio(done, seconds),
        },
    }


def _spent(snapshot: Snapshot | None) -> Part:
    """Where the seconds of both sides went, and what a flip cost."""
    beats = {s: processes(snapshot.beats if snapshot else (), s) for s in TIMED}
    spent = {service: totals.shares(beats[service]) for service in TIMED}
    gauges = ("swap_pause_seconds", "random_pause_seconds", "decode_step_seconds")
    return {
        **{f"{a}_share": {s: spent[s][a] for s in TIMED} for a in ACTIVITIES},
        "idle_seconds": {s: by_label(beats[s], "idle_seconds") for s in TIMED},
        **{name: totals.median_gauge(beats["inference"], name) for name in gauges},
        "canary_gap_nats": totals.largest_gauge(beats["inference"], CANARY_GAP),
    }


def _said(source: Source) -> Part:
    """What there is to say of a run that goes on, or that stands still and is not over."""
    snapshot, word = source.snapshot, source.outcome.word
    if snapshot is None or word not in ("running", "stopped"):
        return {"now": [], "advice": []}
    advice = advise(beginning(snapshot), snapshot) if word == "running" else None
    return {"now": sentences(snapshot), "advice": advice.sentences() if advice else []}


def _seconds(source: Source) -> float:
    """Of the trainers' loops, or of the folder: beats of the dead are forgotten after a day."""
    beats = source.snapshot.beats if source.snapshot else ()
    spent = total(processes(beats, "training"), "wall_seconds")
    return max(spent, source.lines[-1].seconds if source.lines else 0.0)


def _began(lines: Sequence[StepLine]) -> str:
    first = lines[0] if lines else None
    if first is None or not first.time:
        return ""
    return _hour(datetime.fromtimestamp(first.time - first.seconds, UTC))


def _trained(lines: Sequence[StepLine]) -> list[StepLine]:
    return [line for line in lines if line.finite]


def _hour(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def _shown(run: Run) -> dict[str, Any]:
    """The configuration without what is nobody's business: a password in the server's URL."""
    tree: dict[str, Any] = msgspec.to_builtins(run)
    tree["bus"]["url"] = mask(run.bus.url)
    return tree
