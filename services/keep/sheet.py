"""What the doctor found of a run, as lines of text: pure, nothing is asked here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.ledger import GENERATED, in_flight
from pipeline.watch import (
    ENDED,
    Audit,
    Leases,
    Letter,
    Seen,
    Snapshot,
    advise,
    beginning,
    explain,
    newest,
    troubles,
)

MOST_FAULTS = 20


class Look(NamedTuple):
    """A run as it was seen: `where` is its server, `steps` how many it is to make."""

    name: str
    where: str
    steps: int
    snapshot: Snapshot
    audit: Audit
    letters: Sequence[Letter]


def faults(look: Look) -> list[str]:
    """What is wrong, in sentences: the run's end, its books, its processes; empty where sound.

    Dead letters are none: work may be given up for good reasons.
    """
    state, found = look.snapshot.state, []
    if state.stop == "failed":
        found.append(f"the run failed: {state.reason}")
    found += look.audit.faults
    return found if state.stop else [*found, *troubles(look.snapshot)]


def lines(look: Look) -> list[str]:
    """The whole sheet; what is wrong comes last, where a terminal shows it."""
    return [
        *_head(look),
        *_section("waits", explain(look.snapshot) or ["nobody waits"]),
        *_section("advice", _advice(look.snapshot)),
        *_section("places", _places(look)),
        *_section("leases", _leases(look.audit.leases)),
        *_section("processes", _processes(look.snapshot)),
        *_section("ledger", _ledger(look)),
        *_section("dead letters", _letters(look)),
        *_verdict(faults(look)),
    ]


def _head(look: Look) -> list[str]:
    state = look.snapshot.state
    stands = [
        f"step {state.step:,}" + ("" if state.stop == "done" else f" of {look.steps:,}"),
        f"batch {state.batch:,}",
        f"version {state.version}" if state.version >= 0 else "no version yet",
        f"epoch {state.epoch}",
        f"data cursor {state.cursor:,}" + (" (at its end)" if state.eof else ""),
    ]
    return [
        f"run {look.name} at {look.where}: {state.stop or 'running'}",
        f"  {', '.join(stands)}",
    ]


def _section(title: str, rows: Sequence[str]) -> list[str]:
    return [title, *(f"  {row}" for row in rows)]


def _advice(snapshot: Snapshot) -> list[str]:
    """On all of the run so far."""
    advice = advise(beginning(snapshot), snapshot)
    return advice.sentences() if advice else ["too early to say"]


def _places(look: Look) -> list[str]:
    places, audit = look.audit.places, look.audit
    rows = [
        f"{audit.alive:,} of {audit.window:,} are out, {places.started:,} taken by an engine",
        f"prompts {places.prompts:,}, open {places.open:,}, groups {places.groups:,}",
    ]
    waits = [f"{stream} {_seconds(age)}" for stream, age in audit.oldest_seconds.items()]
    if waits:
        rows.append(f"oldest ticket that nobody took: {', '.join(waits)}")
    if audit.overdue:
        rows.append(f"past their deadline: {audit.overdue:,}")
    return rows


def _leases(leases: Sequence[Leases]) -> list[str]:
    rows = [("owner", "prompts", "completions", "silent")]
    rows += [(e.owner, f"{e.prompts:,}", f"{e.completions:,}", _silence(e)) for e in leases]
    return _table(rows) if leases else ["none"]


def _silence(lease: Leases) -> str:
    if lease.silent_seconds is None:
        return "free for the next"
    return _seconds(lease.silent_seconds) + ("" if lease.alive else ", dead")


def _processes(snapshot: Snapshot) -> list[str]:
    rows = [("process", "version", "holds", "silent", "waits for")]
    rows += [_process(seen) for seen in newest(snapshot.beats)]
    if len(rows) == 1:
        return ["none has ever beaten"]
    return [*_table(rows, left=(0, 4)), f"newest version: {snapshot.state.version}"]


def _process(seen: Seen) -> tuple[str, str, str, str, str]:
    beat = seen.beat
    version = str(beat.version) if beat.version >= 0 else "-"
    does = ENDED if seen.ended else f"({seen.condition})"
    if seen.condition == "waits":
        does = beat.waiting_for or ""
    return (beat.instance, version, f"{seen.held:,}", _seconds(seen.age_seconds), does)


def _ledger(look: Look) -> list[str]:
    ledger, audit = look.snapshot.ledger, look.audit
    rows = [("fate", "members", "tokens")]
    ends = sorted((f for f in ledger if f != GENERATED), key=lambda fate: -ledger[fate].tokens)
    for fate in [f for f in (GENERATED, *ends) if f in ledger]:
        rows.append((fate, f"{ledger[fate].members:,}", f"{ledger[fate].tokens:,}"))
    rows.append(("in flight", "", f"{in_flight(ledger):,}"))
    held = f"the groups alive hold {audit.held.members:,} members, {audit.held.tokens:,} tokens"
    moved = "" if audit.exact else "; the ledger moved meanwhile, so they were not compared"
    return [*_table(rows), held + moved]


def _letters(look: Look) -> list[str]:
    rows = [
        f"{_seconds(letter.age_seconds)} ago, {letter.stream}, group {letter.group}"
        + (f" member {letter.member}" if letter.member else "")
        + (f", in the hands of {letter.boot}" if letter.boot else "")
        + f": {letter.reason}"
        for letter in look.letters
    ]
    if (more := look.snapshot.dead_letters - len(rows)) > 0:
        rows.append(f"and {more:,} before")
    return rows or ["none"]


def _verdict(found: Sequence[str]) -> Iterator[str]:
    if not found:
        yield "sound: no fault was found"
        return
    yield "1 fault" if len(found) == 1 else f"{len(found):,} faults"
    yield from (f"  {fault}" for fault in found[:MOST_FAULTS])
    if (more := len(found) - MOST_FAULTS) > 0:
        yield f"  and {more:,} more"


def _table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Columns side by side: numbers to the right, the columns of `left` to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
