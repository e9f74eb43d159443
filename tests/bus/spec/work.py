"""The acts of engines and scorers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from math import ceil

from spec.groups import after_change, fail_member, fail_ticket, prompts_of
from spec.leases import (
    check_hands,
    clear_strikes,
    from_pool,
    is_gone,
    is_struck,
    num_live_like,
    read_new,
    reclaim,
)
from spec.world import Group, Span, Spans, Ticket, World

Handed = tuple[int, str, int, list[int], dict[int, Spans]]
"""Ticket, group, strikes, members to do, prefixes."""


def take(
    w: World,
    boot: str,
    *,
    version: int,
    held: Collection[int],
    count: int,
    pin: int | None = None,
    pinned_count: int = 0,
) -> tuple[str, list[Handed]]:
    if is_gone(w, boot):
        return "gone", []
    me = w.boots[boot]
    if me.quarantined:
        return "quarantined", []
    if (boot, version) not in w.proofs or version not in w.versions:
        return "unproven", []
    num_held, lone = _hands(w, boot, held)
    if lone:
        return "ok", []
    if num_held:
        me.has_taken = True
    elif not me.has_taken:
        count = min(count, ceil(w.settings.window / num_live_like(w, boot)))
    status, out, is_alone = _take_own(w, boot, version, count, num_held=num_held)
    if w.held_out and not is_alone and (boot, pin) in w.proofs:
        out += _take_pinned(w, boot, pin, pinned_count, num_held=num_held + len(out))
    if w.held_out and w.evaluation.version == pin and (boot, pin) not in w.proofs:
        status = "unproven"
    return status, [_handed(w, ticket) for ticket in out]


def _hands(w: World, boot: str, held: Collection[int]) -> tuple[int, bool]:
    """How many tickets are in hand, and whether one stays alone; the dead bequeath theirs."""
    reclaim(w, "prompts", boot)
    num_held, lone = check_hands(w, "prompts", boot, held)
    if w.held_out:
        reclaim(w, "eval:prompts", boot)
        num_held += check_hands(w, "eval:prompts", boot, held)[0]
    return num_held, lone


def _take_own(
    w: World, boot: str, version: int, count: int, *, num_held: int
) -> tuple[str, list[Ticket], bool]:
    """Of the run's own; and whether a struck one was taken, or waits for empty hands."""
    step = w.versions[version][0]

    def give(ticket: Ticket) -> bool:
        g = w.groups[ticket.group]
        if g.start is None:
            g.start = step
        if g.start > step:
            return False
        g.progress = None
        return True

    out, alone = from_pool(w, "prompts", boot, count, num_held=num_held, give=give)
    count = 0 if out and is_struck("prompts", out[-1]) else count - len(out)
    seats = num_seats(w, step)
    waiting = sum(g.start is None for g in w.alive)
    out += read_new(w, "prompts", boot, min(count, seats), give=give)
    is_gated = not out and count > 0 and waiting > 0 and seats == 0
    return "flip" if is_gated else "ok", out, alone


def _take_pinned(
    w: World, boot: str, pin: int | None, count: int, *, num_held: int
) -> list[Ticket]:
    """Held-out groups, beside all other work, for who keeps the weights that they are pinned to."""

    def give(ticket: Ticket) -> bool:
        g = w.groups[ticket.group]
        if g.pin != pin:
            return False
        g.progress = None
        return True

    out, _ = from_pool(w, "eval:prompts", boot, count, num_held=num_held, give=give)
    return out + read_new(w, "eval:prompts", boot, count - len(out), give=give)


def num_seats(w: World, step: int) -> int:
    """A new group must find a seat in a batch before it is too old."""
    slack = w.settings.lag_max + step - w.step
    started = sum(g.start is not None for g in w.alive)
    return max(0, (slack + 1) * w.settings.per_step - started)


def _handed(w: World, ticket: Ticket) -> Handed:
    g = w.groups[ticket.group]
    prefixes = {m: merged(g.members[m].chunks) for m in g.todo if g.members[m].chunks}
    return ticket.number, g.name, ticket.strikes, g.todo, prefixes


def merged(chunks: Collection[Spans]) -> Spans:
    out: list[Span] = []
    for span in (s for chunk in chunks for s in chunk):
        if out and (out[-1].version, out[-1].boot) == (span.version, span.boot):
            span = Span(span.version, out.pop().tokens + span.tokens, span.boot)
        out.append(span)
    return tuple(out)


def without_first(spans: Spans, tokens: int) -> Spans:
    out = []
    for span in spans:
        if span.tokens > tokens:
            out.append(Span(span.version, span.tokens - tokens, span.boot))
        tokens = max(0, tokens - span.tokens)
    return tuple(out)


def save(w: World, boot: str, group: str, m: int, *, ticket: int, prefix: Spans) -> str:
    """The whole prefix so far; only what is new is kept."""
    g = w.groups.get(group)
    is_there = g is not None and g.state != "closed"
    k, saved = (g.members[m].num_chunks, g.members[m].saved) if g and is_there else (0, 0)
    chunk = without_first(prefix, saved)
    return save_chunk(w, boot, group, m, k=k, ticket=ticket, chunk=chunk) if chunk else "ok"


def save_chunk(
    w: World, boot: str, group: str, m: int, *, k: int, ticket: int, chunk: Spans
) -> str:
    g = w.groups.get(group)
    if g and g.savers.get((m, k)) == boot:
        return "ok"
    if not g or g.state != "open":
        return "closed"
    if is_gone(w, boot):
        return "gone"
    mine = w.ticket_of(prompts_of(g), group)
    if not mine or mine.number != ticket or mine.owner != boot:
        return "lost"
    member = g.members[m]
    if member.status:
        return "dup"
    if not w.is_proven(chunk) or not is_pinned(g, chunk):
        return "unproven"
    if member.num_chunks != k:
        return "behind"
    g.savers[m, k] = boot
    member.chunks.append(chunk)
    member.num_chunks += 1
    member.saved += sum(s.tokens for s in chunk)
    made = Counter[str]()
    for span in chunk:
        made[span.boot] += span.tokens
    for maker, tokens in made.items():
        g.booked[m, maker] = g.booked.get((m, maker), 0) + tokens
    member.tokens += made.total()
    w.book("generated", 0, made.total(), of=g)
    clear_strikes(w, g, boot)
    return "ok"


def deliver(w: World, boot: str, group: str, m: int, spans: Spans) -> str:
    g = w.groups.get(group)
    if not g:
        return "closed"
    if (m, boot) in g.marks:
        return g.marks[m, boot]
    if g.state != "open":
        return _spend(w, g, m, boot, spans, "late")
    member = g.members[m]
    if member.status:
        return _spend(w, g, m, boot, spans, "duplicate")
    if is_gone(w, boot):
        return "gone"
    if not w.is_proven(spans) or not is_pinned(g, spans):
        return "unproven"
    new = 0
    for maker in {s.boot for s in spans}:
        more = _unbooked(g, m, maker, spans)
        if maker != boot:  # its own are booked with the mark
            g.booked[m, maker] = g.booked.get((m, maker), 0) + more
        new += more
    tokens = sum(s.tokens for s in spans)
    w.book("generated", 1, new, of=g)
    w.book("superseded", 0, member.tokens + new - tokens, of=g)
    member.status, member.tokens, member.is_held, member.chunks = "delivered", tokens, True, []
    w.issue("completions", group, m)
    g.marks[m, boot] = "ok"
    if g.due is None:
        g.due = w.now + w.settings.deadline_ms
    clear_strikes(w, g, boot)
    after_change(w, g)
    return "ok"


def is_pinned(g: Group, spans: Spans) -> bool:
    """A held-out member is of one version throughout."""
    return g.pin is None or all(span.version == g.pin for span in spans)


def _unbooked(g: Group, m: int, maker: str, spans: Spans) -> int:
    """Of the tokens that a boot made of a member: how many nothing has booked."""
    made = sum(s.tokens for s in spans if s.boot == maker)
    return max(0, made - g.booked.get((m, maker), 0))


def _spend(w: World, g: Group, m: int, boot: str, spans: Spans, fate: str) -> str:
    """Nobody can use it: only what this boot itself made is booked, and at once spent."""
    new, members = _unbooked(g, m, boot, spans), 1
    # What was booked when the server had lost it is not booked again.
    known_members, known = min(1, g.owed[0]), min(new, g.owed[1])
    g.owed = (g.owed[0] - known_members, g.owed[1] - known)
    new, members = new - known, 1 - known_members
    w.book("generated", members, new, of=g)
    w.book(fate, members, new, of=g)
    g.marks[m, boot] = fate
    return fate


def fail(
    w: World, stream: str, boot: str, *, ticket: int, group: str, m: int | None, reason: str
) -> str:
    g = w.groups.get(group)
    if not g or g.state != "open":
        return "closed"
    if is_gone(w, boot):
        return "gone"
    stream = w.lane_of(stream, ticket)
    mine = w.numbered(stream, ticket)
    if not mine or mine.owner != boot:
        return "lost"
    return "ok" if fail_ticket(w, stream, g, m, boot, reason) else "dup"


def draw(
    w: World, boot: str, *, held: Collection[int], count: int
) -> tuple[str, list[tuple[int, str, int, int]]]:
    if is_gone(w, boot):
        return "gone", []
    reclaim(w, "completions", boot)
    num_held, lone = check_hands(w, "completions", boot, held)
    if lone:
        return "ok", []
    suits = lambda ticket: True  # noqa: E731
    out, alone = from_pool(w, "completions", boot, count, num_held=num_held, give=suits)
    if not alone:
        out += read_new(w, "completions", boot, count - len(out), give=suits)
    return "ok", [(t.number, t.group, t.member or 0, t.strikes) for t in out]


def score(
    w: World, boot: str, *, ticket: int, group: str, m: int, error: bool, outcome: float = 1.0
) -> str:
    g = w.groups.get(group)
    status = g.members[m].status if g and m < len(g.members) else ""
    if g and status in ("scored", "spoilt", "failed"):
        w.settle("completions", w.numbered("completions", ticket))
        return "dup"
    if not g or g.state != "open" or status != "delivered":
        w.settle("completions", w.numbered("completions", ticket))
        return "closed"
    if is_gone(w, boot):
        return "gone"
    w.settle("completions", w.numbered("completions", ticket))
    if error:
        fail_member(w, g, m, "scorer_error", "why")
        w.letters.append(("completions", group, str(m), boot))
    else:
        g.members[m].status = "scored"
        g.members[m].outcome = outcome
        w.settle("completions", w.ticket_of("completions", group, m))
    after_change(w, g)
    return "ok"
