"""Who is alive, who may take from whom, and how tickets change hands."""

from __future__ import annotations

from collections.abc import Callable, Collection

from spec.groups import fail_ticket, prompts_of
from spec.world import DAY_MS, POOL, Boot, Group, Ticket, World

MAX_STRIKES, LONE_FROM = 3, 2


def is_gone(w: World, boot: str) -> bool:
    """Dead by declaration, or never heard of."""
    return boot not in w.boots or w.boots[boot].beat == 0


def declare_dead(w: World, boot: str) -> None:
    if boot in w.boots:
        w.boots[boot].beat, w.boots[boot].died = 0, w.now


def may_reap(w: World, boot: str) -> bool:
    """Only who was itself awake for a whole lease judges others by the age of their beat."""
    if is_gone(w, boot):
        return False
    me, lease = w.boots[boot], w.settings.lease_ms
    return w.now - me.seen < lease / 3 and w.now - me.since >= lease


def is_dead(w: World, owner: str, *, reaper_may: bool) -> bool:
    if is_gone(w, owner):
        return True
    return reaper_may and w.now - w.boots[owner].beat > w.settings.lease_ms


def num_live_like(w: World, boot: str) -> int:
    """Live processes of the same service that are not quarantined; 1 at least."""
    since, service = w.now - w.settings.lease_ms, w.boots[boot].service
    alike = [
        b
        for b in w.boots.values()
        if b.beat >= since and b.service == service and not b.quarantined and b.beat
    ]
    return max(len(alike), 1)


def beat(w: World, boot: str, service: str, held: Collection[str]) -> str | list[str]:
    """A sign of life; which of the held groups are no longer open."""
    me = w.boots.get(boot)
    if me and me.beat == 0:
        return "gone"
    if not me:
        prune(w)
    if not me:
        me = w.boots[boot] = Boot(service, boot.partition(":")[0], w.now, w.now, w.now)
    if w.now - me.seen > w.settings.lease_ms / 3:
        me.since = w.now
    me.beat = me.seen = w.now
    return [g for g in held if g not in w.groups or w.groups[g].state != "open"]


def prune(w: World) -> None:
    """A boot is forgotten a day after its end."""
    for name, b in list(w.boots.items()):
        ended = b.died if b.died is not None else b.beat
        if b.beat <= w.now - DAY_MS and ended < w.now - DAY_MS:
            del w.boots[name]


def bury(w: World, instance: str) -> int:
    buried = [n for n, b in w.boots.items() if b.instance == instance and b.beat]
    for name in buried:
        declare_dead(w, name)
    return len(buried)


# Tickets change hands.


def owned(w: World, stream: str, owner: str) -> list[Ticket]:
    return [t for t in w.stream(stream) if t.owner == owner]


def reclaim(w: World, stream: str, reaper: str) -> None:
    """What the dead hold goes to the pool, with a strike where it may be what killed them."""
    reaper_may = may_reap(w, reaper)
    owners = {t.owner for t in w.stream(stream) if t.owner not in (None, POOL)}
    for owner in sorted(o for o in owners if o):
        if is_dead(w, owner, reaper_may=reaper_may):
            if not is_gone(w, owner):
                declare_dead(w, owner)
            mine = owned(w, stream, owner)
            for ticket in mine:
                strike(w, stream, ticket, alone=len(mine) == 1)


def strike(w: World, stream: str, ticket: Ticket, *, alone: bool) -> None:
    """Progress by the owner clears it; the third, the last two of them alone, is the end.

    Held-out work is never alone: there the third is the end.
    """
    g, m, owner = w.groups[ticket.group], ticket.member, ticket.owner
    part = g if m is None else g.members[m]
    assert owner is not None
    if m is not None or g.progress != owner:
        ticket.strikes += 1
        part.lone_strikes = part.lone_strikes + 1 if alone else 0
    if ticket.strikes >= MAX_STRIKES and (part.lone_strikes >= 2 or stream == "eval:prompts"):
        fail_ticket(w, stream, g, m, owner, "poison")
    else:
        ticket.owner = POOL


def clear_strikes(w: World, g: Group, boot: str) -> None:
    ticket = w.ticket_of(prompts_of(g), g.name)
    if ticket and ticket.owner == boot:
        ticket.strikes, g.progress = 0, boot


def is_struck(stream: str, ticket: Ticket) -> bool:
    """Whether it is served alone."""
    return stream != "eval:prompts" and ticket.strikes >= LONE_FROM


def check_hands(w: World, stream: str, boot: str, held: Collection[int]) -> tuple[int, bool]:
    """A lost reply must not leak: what is owned and not held goes back."""
    num_held, lone = 0, False
    for ticket in owned(w, stream, boot):
        if ticket.number in held:
            num_held += 1
            lone = lone or is_struck(stream, ticket)
        else:
            ticket.owner = POOL
    return num_held, lone


Give = Callable[[Ticket], bool]


def from_pool(
    w: World, stream: str, boot: str, count: int, *, num_held: int, give: Give
) -> tuple[list[Ticket], bool]:
    """Oldest first. A struck ticket is taken by empty hands, and then nothing else.

    Whether such a one was taken, or waits for empty hands, is told.
    """
    out: list[Ticket] = []
    waits = False
    for ticket in owned(w, stream, POOL):
        # It looks at whole pages of the pool, and this one is shorter than a page.
        lone = is_struck(stream, ticket)
        put_off = lone and num_held + len(out) > 0
        waits = waits or (put_off and count > 0)
        if len(out) < count and not put_off and give(ticket):
            ticket.owner = boot
            out.append(ticket)
            if lone:
                return out, True
    return out, waits


def read_new(w: World, stream: str, boot: str, count: int, *, give: Give) -> list[Ticket]:
    new = [t for t in w.stream(stream) if t.owner is None][: max(count, 0)]
    for ticket in new:
        ticket.owner = boot if give(ticket) else POOL
    return [ticket for ticket in new if ticket.owner == boot]


def give_back(w: World, stream: str, boot: str, numbers: Collection[int]) -> None:
    for number in numbers:
        ticket = w.numbered(w.lane_of(stream, number), number)
        if ticket and ticket.owner == boot:
            ticket.owner = POOL
