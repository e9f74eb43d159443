"""What one look at a run means, in sentences: everything that is wrong, then who waits for whom."""

from __future__ import annotations

from pipeline.watch.faults import LEDGER, of_ledger, of_processes, of_server
from pipeline.watch.finding import Finding
from pipeline.watch.flow import (
    hung_scorers,
    in_a_circle,
    letters,
    no_more_data,
    slow_evaluation,
    slow_scoring,
    small_window,
    starved_kinds,
    waiting,
)
from pipeline.watch.gaming import gaming
from pipeline.watch.look import Snapshot
from pipeline.watch.waits import stages


def explain(snapshot: Snapshot) -> list[str]:
    """Who waits for whom and what is wrong, the worst first; one sentence each."""
    return [found.sentence for found in findings(snapshot)]


def troubles(snapshot: Snapshot) -> list[str]:
    """What is wrong with a run that goes on, but for its ledger, which an audit knows better."""
    return [f.sentence for f in findings(snapshot) if f.grave and f.kind != LEDGER]


def findings(snapshot: Snapshot) -> list[Finding]:
    """The same as `explain`, for who looks again and again and has to tell them apart."""
    if snapshot.state.stop:
        why = f": {snapshot.state.reason}" if snapshot.state.reason else ""
        over = Finding("over", "", f"the run is {snapshot.state.stop}{why}", grave=False)
        return [over, *of_ledger(snapshot), *starved_kinds(snapshot), *gaming(snapshot)]
    among = stages(snapshot)
    return [
        *of_ledger(snapshot),
        *of_server(snapshot),
        *of_processes(snapshot),
        *in_a_circle(snapshot, among),
        *hung_scorers(among),
        *slow_scoring(snapshot, among),
        *small_window(snapshot, among),
        *starved_kinds(snapshot),
        *gaming(snapshot),
        *slow_evaluation(snapshot),
        *no_more_data(snapshot),
        *letters(snapshot),
        *waiting(snapshot, among),
    ]
