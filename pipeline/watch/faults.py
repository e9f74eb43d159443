"""What is wrong with the parts of a run, each by itself: the ledger, the server, the processes."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.ledger import in_flight
from pipeline.watch.finding import Finding, megabytes, plural
from pipeline.watch.look import Snapshot, present
from pipeline.watch.seen import SERVICES, Seen, paired
from pipeline.watch.waits import MEMORY, memory, sure, unable

LEDGER = "ledger"
ADMISSION_SHARE = 0.75
"""Of maxmemory: beyond it nothing is admitted (bus/lua/admit.lua)."""
LEAST_DISK_BYTES = 1 << 28
CANARY_GAP = 'canary_gap_nats{of="largest"}'
"""The gauge of an engine's beat."""
LEAST_FAULTS = 20
"""Of one scorer, before they say something of it."""
NEAR_SHARE = 0.75
"""Of the largest gap that an engine's canary may have, as in the alert on it."""


def imbalance(snapshot: Snapshot) -> int:
    """Tokens without a fate that nothing alive explains, or less than 0: fates without a token.

    While groups are alive, what has no fate yet may be theirs: then only a negative rest tells.
    """
    rest = in_flight(snapshot.ledger)
    return 0 if rest > 0 and snapshot.places.alive else rest


def of_ledger(snapshot: Snapshot) -> Iterator[Finding]:
    """Books that do not balance."""
    rest = imbalance(snapshot)
    if rest:
        what = "have no fate, and nothing is alive"
        if rest < 0:
            what = "have a fate and were never generated"
        yield Finding(LEDGER, "", f"the ledger does not balance: {abs(rest):,} tokens {what}")


def of_server(snapshot: Snapshot) -> Iterator[Finding]:
    """Redis, refusing writes or full: grave once prompting has to wait for that."""
    server = snapshot.server
    if server.fault:
        yield Finding("refusing", "Redis", f"Redis refuses writes: {server.fault}")
    if server.limit_bytes and server.used_bytes >= ADMISSION_SHARE * server.limit_bytes:
        sentence = f"Redis is full: {memory(snapshot)}, and beyond {ADMISSION_SHARE:.0%} nothing"
        held_up = any(s.beat.waiting_for == MEMORY and sure(s) for s in present(snapshot))
        yield Finding("full", "Redis", f"{sentence} is admitted", grave=held_up)


def of_processes(snapshot: Snapshot) -> Iterator[Finding]:
    """Missing, silent, stalled, quarantined, without disk, or near a quarantine."""
    processes = present(snapshot)
    alive = {seen.beat.service for seen in processes if seen.alive}
    for service in SERVICES:
        if service not in alive:
            yield Finding("missing", service, f"no process of {service} is alive")
    for seen in processes:
        who = seen.beat.instance
        for kind, sentence in _of_process(seen):
            yield Finding(kind, who, f"{who} {sentence}")
        if sentence := _canary(seen):
            yield Finding("canary", who, f"{who} {sentence}", grave=False)


def _of_process(seen: Seen) -> Iterator[tuple[str, str]]:
    if seen.silent:
        leases = f"holds {plural(seen.held, 'lease')} and " if seen.held else ""
        yield "silent", f"{leases}has been {unable(seen)}"
    if seen.stalled:
        yield "stalled", f"has made {unable(seen)}"
    if seen.quarantined:
        yield "quarantined", f"is quarantined: {seen.quarantined}"
    if seen.rejected:
        yield "rejected", f"could not stage {seen.rejected}"
    if differ := int(seen.beat.gauges.get("golden_differences", 0)):
        yield "drift", f"gives {plural(differ, 'golden answer')} another verdict than expected"
    for sentence in _without_verdicts(seen):
        yield "failing", sentence
    free = seen.beat.gauges.get("disk_free_bytes", LEAST_DISK_BYTES)
    if free < LEAST_DISK_BYTES:
        yield "disk", f"writes to a disk that is full: {megabytes(free)} are left"


def _without_verdicts(seen: Seen) -> Iterator[str]:
    """Of a scorer that fails on most answers, a shadow as well: nothing is learnt from it."""
    faults, verdicts = (paired(seen.beat.totals, name) for name in ("faults", "verdicts"))
    for scorer in {name: None for name, _ in faults}:
        failed, graded = (
            {reason: count for (name, reason), count in counted.items() if name == scorer}
            for counted in (faults, verdicts)
        )
        lost = sum(failed.values())
        if lost >= LEAST_FAULTS and lost > sum(graded.values()):
            of = lost + sum(graded.values())
            reason = max(failed, key=failed.__getitem__)
            yield (
                f"has no verdict of {scorer} on {lost:,.0f} of {of:,.0f} answers, mostly {reason}:"
                " its log says why"
            )


def _canary(seen: Seen) -> str:
    """An engine that is on its way to a quarantine; who is in it has said by how much."""
    gauges = seen.beat.gauges
    gap, limit = gauges.get(CANARY_GAP, 0.0), gauges.get("canary_limit_nats")
    if limit is None or seen.quarantined or not gap > NEAR_SHARE * limit:
        return ""
    canary = f"the canary of version {gauges.get('canary_version', -1):.0f}"
    return (
        f"computes log-probs {gap:.2g} nats off the trainer's ({canary}),"
        f" and is quarantined beyond {limit:g}"
    )
