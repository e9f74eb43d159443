"""How a run ended, in the words that the panel, the report and the exit code share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from pipeline.ledger import Fates, Sum
from pipeline.serve import EXIT_DONE, EXIT_FAILED
from pipeline.watch import Snapshot, present
from services.view import totals

TAUGHT = ("trained", "zero_signal")
BLAMED = {"scorer_error": "scoring-0", "failed": "inference-0"}
"""Whose log tells of members that ended so; else it is the trainer's."""


class Outcome(NamedTuple):
    """`reason` is one line, and empty where there is nothing to say."""

    word: Literal["done", "failed", "stopped", "running", "unknown"]
    reason: str = ""
    code: int = EXIT_DONE


def told(stop: str, reason: str) -> Outcome:
    """What the trainer said of the run's end."""
    if stop == "done":
        return Outcome("done", reason)
    return Outcome("failed", reason, EXIT_FAILED)


def standing(snapshot: Snapshot) -> Outcome:
    """How a run stands that is looked at from outside, perhaps while it goes on."""
    state = snapshot.state
    if state.stop:
        return told(state.stop, state.reason)
    if any(seen.alive for seen in present(snapshot)):
        return Outcome("running")
    reason = "no process is alive" if snapshot.beats else "no process has started yet"
    return Outcome("stopped", reason)


def proven(outcome: Outcome, ledger: Fates, logs: Path) -> Outcome:
    """A run that is done while all its members were refused has failed, and this says why."""
    refused = totals.refused(ledger)
    if outcome.word != "done" or not refused or any(_members(ledger, fate) for fate in TAUGHT):
        return outcome
    most = max(refused, key=lambda fate: refused[fate])
    verb = "scored" if refused.keys() <= BLAMED.keys() else "trained"
    log = logs / f"{BLAMED.get(most, 'training-0')}.log"
    reason = f"no member was ever {verb}: {shares(refused)}; see {log}"
    return Outcome("failed", reason, EXIT_FAILED)


def shares(members: Mapping[str, int], verb: str = "") -> str:
    """24 of 24 scorer_error; the most frequent fate first, each of all these members."""
    whole = sum(members.values())
    by_count = sorted(members.items(), key=lambda item: -item[1])
    return ", ".join(f"{n:,} of {whole:,} {verb}{fate}" for fate, n in by_count)


def _members(ledger: Fates, fate: str) -> int:
    return ledger.get(fate, Sum(0, 0)).members
