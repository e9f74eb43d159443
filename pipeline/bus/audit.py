"""Takes the audit of a run, in as many small looks as it needs: nothing is written."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Struct

from pipeline.bus.keeping import read_strays
from pipeline.bus.look import ledger_of, pairs
from pipeline.bus.scripts import Arg, Scripts
from pipeline.ledger import GENERATED, Fates, Sum
from pipeline.watch import Audit, Leases, Places

GROUPS_A_LOOK = 500
_FROM_THE_START: tuple[bytes, ...] = (b"0", b"-", b"-", b"0", b"0", b"-")


class _Count(Struct):
    """What was counted so far; the last reply stands for what is true of the run as a whole."""

    places: Counter[int]
    held: Counter[int]
    faults: list[str]


def take_audit(scripts: Scripts, *, groups_a_look: int = GROUPS_A_LOOK) -> Audit:
    """The whole run; raises SluiceError where it is not open.

    No look lasts longer than `groups_a_look` groups and as many tickets of each stream.
    """
    count = _Count(places=Counter(), held=Counter(), faults=[])
    at, looks, before = _FROM_THE_START, 0, None
    while any(at) or not looks:
        reply = scripts.call("audit", *_args(at, groups_a_look))
        at, places, held, faults = reply[:4]
        before = _ledgers(reply) if before is None else before
        count.places.update(dict(enumerate(places)))
        count.held.update(dict(enumerate(held)))
        count.faults += [fault.decode(errors="replace") for fault in faults]
        looks += 1
    count.faults += _leftovers(read_strays(scripts))
    return _audit(count, before or ({}, {}), reply)


def _leftovers(strays: list[str]) -> list[str]:
    """One sentence for all of them, since a run without them is as sound."""
    if not strays:
        return []
    more = f" and {len(strays) - 1} more" if strays[1:] else ""
    return [f"{strays[0]}{more}: pieces of cargo that belong to no group"]


def _args(at: tuple[bytes, ...], limit: int) -> list[Arg]:
    return [*at, limit]


def _ledgers(reply: Any) -> tuple[Fates, Fates]:
    """The run's, and that of its held-out groups."""
    return ledger_of(pairs(reply[4])), ledger_of(pairs(reply[10]))


def _audit(count: _Count, before: tuple[Fates, Fates], reply: Any) -> Audit:
    ledger, held_out = _ledgers(reply)
    (alive, started, overdue, window), (now, *oldest) = reply[5], reply[6]
    held = Sum(count.held[0], count.held[1])
    places = Places(
        prompts=count.places[0], open=count.places[1], groups=count.places[2], started=started
    )
    exact = (ledger, held_out) == before
    faults = [*count.faults, *_imbalance(ledger, held, exact)]
    kept = Sum(count.held[2], count.held[3])
    faults += [f"of held-out groups {fault}" for fault in _imbalance(held_out, kept, exact)]
    if alive > window:
        faults.append(f"{alive} groups are alive, and the window has {window} places")
    return Audit(
        alive=alive,
        window=window,
        places=places,
        held=held,
        exact=exact,
        overdue=overdue,
        oldest_seconds={
            stream: max(0, now - then) / 1000
            for stream, then in zip(("prompts", "completions", "groups"), oldest, strict=True)
            if then
        },
        leases=_leases(reply[7], pairs(reply[8]), lease_ms=reply[9], now=now),
        faults=tuple(faults),
    )


def _imbalance(ledger: Fates, held: Sum, exact: bool) -> list[str]:
    """What has no fate is what the groups alive hold: in one look of all, or where none moved."""
    for what, number, rest in zip(("members", "tokens"), held, _without_fate(ledger), strict=True):
        if rest < 0:
            return [f"the ledger does not balance: {-rest} {what} more have a fate than were made"]
        if exact and rest != number:
            return [
                f"the ledger does not balance: {rest} {what} have no fate, and the groups alive"
                f" hold {number}"
            ]
    return []


def _without_fate(ledger: Fates) -> Sum:
    fates = [part for fate, part in ledger.items() if fate != GENERATED]
    made = ledger.get(GENERATED, Sum(0, 0))
    return Sum(
        made.members - sum(s.members for s in fates), made.tokens - sum(s.tokens for s in fates)
    )


def _leases(
    pending: list[Any], beats: dict[bytes, bytes], *, lease_ms: int, now: int
) -> tuple[Leases, ...]:
    prompts, completions = (dict(rows) for rows in pending)
    out = []
    for owner in sorted({*prompts, *completions}):
        last = float(beats.get(owner, 0))
        out.append(
            Leases(
                owner=owner.decode(),
                prompts=int(prompts.get(owner, 0)),
                completions=int(completions.get(owner, 0)),
                silent_seconds=max(0.0, now - last) / 1000 if last else None,
                alive=last > 0 and now - last <= lease_ms,
            )
        )
    return tuple(out)
