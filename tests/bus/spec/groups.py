"""How a group turns: open -> ready -> closed, or open -> closed; and what its tokens become."""

from __future__ import annotations

from collections.abc import Mapping

from spec.world import TOMBSTONE_MS, Group, Member, World

Sums = Mapping[str, tuple[int, int]]


def prompts_of(g: Group) -> str:
    return "prompts" if g.pin is None else "eval:prompts"


def is_graded(g: Group, member: Member, fate: str) -> bool:
    """A held-out member that is scored says something, unless its evaluation was given up."""
    return g.pin is not None and member.status == "scored" and fate != "cancelled"


def book_member(w: World, g: Group, member: Member, fate: str) -> None:
    fate = "graded" if is_graded(g, member, fate) else fate
    w.book(member.fate or fate, int(member.is_held), member.tokens, of=g)


def book_sums(w: World, members: int, tokens: int, sums: Sums) -> tuple[int, int]:
    """The trainer's word: what it leaves out was superseded, what the server lacks was made too."""
    for fate, (some_members, some_tokens) in sums.items():
        w.book(fate, some_members, some_tokens)
        members, tokens = members - some_members, tokens - some_tokens
    w.book("superseded", max(members, 0), max(tokens, 0))
    w.book("generated", max(-members, 0), max(-tokens, 0))
    return max(-members, 0), max(-tokens, 0)


def close(w: World, g: Group, fate: str = "", sums: Sums | None = None) -> None:
    """The end: every token has its fate, no ticket is left, the place is free."""
    if sums is None:
        for member in g.members:
            book_member(w, g, member, fate)
    else:
        members = sum(member.is_held for member in g.members)
        tokens = sum(member.tokens for member in g.members)
        named_members, named_tokens = (sum(part[i] for part in sums.values()) for i in (0, 1))
        if named_members > members or named_tokens > tokens:
            # It was trained before the server was put back: its second release never was.
            for spent, (some_members, some_tokens) in g.spent.items():
                w.book(spent, -some_members, -some_tokens)
                members, tokens = members + some_members, tokens + some_tokens
        g.owed = book_sums(w, members, tokens, sums)
    if g.pin is not None:
        note_outcomes(w, g, fate)
    w.prompts = [t for t in w.prompts if t.group != g.name]
    w.held_out_prompts = [t for t in w.held_out_prompts if t.group != g.name]
    w.completions = [t for t in w.completions if t.group != g.name]
    w.ready = [name for name in w.ready if name != g.name]
    g.state, g.due, g.ends = "closed", None, w.now + TOMBSTONE_MS
    g.members, g.progress, g.lone_strikes = [Member() for _ in g.members], None, 0
    g.spent = {}


def note_outcomes(w: World, g: Group, fate: str) -> None:
    told = [member.outcome if is_graded(g, member, fate) else None for member in g.members]
    w.evaluation.outcomes[g.seq] = told
    w.evaluation.boots |= {boot for (_, boot), said in g.marks.items() if said == "ok"}


def release(w: World, g: Group, fate: str = "cut") -> None:
    """Ready with the members that are scored; the others get this fate, or the one they had.

    A held-out group has nothing to be ready for.
    """
    if g.pin is not None:
        return close(w, g, "failed")
    if not any(member.status == "scored" for member in g.members):
        return close(w, g, "failed")
    settle_prompt(w, g)
    for m, member in enumerate(g.members):
        if member.status != "scored":
            book_member(w, g, member, fate)
            old = g.spent.get(spent := member.fate or fate, (0, 0))
            g.spent[spent] = (old[0] + member.is_held, old[1] + member.tokens)
            w.settle("completions", w.ticket_of("completions", g.name, m))
            member.is_held, member.tokens, member.chunks = False, 0, []
    g.state, g.due = "ready", None
    w.ready.append(g.name)


def settle_prompt(w: World, g: Group) -> None:
    w.settle(prompts_of(g), w.ticket_of(prompts_of(g), g.name))
    g.progress, g.lone_strikes = None, 0


def after_change(w: World, g: Group) -> None:
    scored = sum(member.status == "scored" for member in g.members)
    if g.pin is None and 0 < w.settings.release <= scored:
        return release(w, g, "surplus")
    if not g.todo:
        settle_prompt(w, g)
    if all(member.is_over for member in g.members):
        release(w, g)


def fail_member(w: World, g: Group, m: int, fate: str, reason: str) -> None:
    member = g.members[m]
    member.status = "spoilt" if member.status == "delivered" else "failed"
    member.fate, member.reason = fate, reason
    w.settle("completions", w.ticket_of("completions", g.name, m))


def fail_ticket(w: World, stream: str, g: Group, m: int | None, boot: str, reason: str) -> int:
    """One member, or all that are not delivered: what was delivered no engine can take back."""
    failed = 0
    for i, member in enumerate(g.members):
        is_open = not member.status or (stream == "completions" and member.status == "delivered")
        if m in (None, i) and is_open:
            fail_member(w, g, i, "failed", reason)
            failed += 1
    if failed:
        w.letters.append((stream, g.name, "" if m is None else str(m), boot))
        after_change(w, g)
    return failed
