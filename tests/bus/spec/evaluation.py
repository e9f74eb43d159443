"""Held-out groups beside the window: prompting opens an evaluation, the trainer ends it."""

from __future__ import annotations

from collections.abc import Sequence

from spec.groups import close
from spec.world import Group, Member, World


def evaluate(
    w: World, names: Sequence[tuple[str, int, int]], *, version: int, size: int, first: int
) -> str:
    """`names` are (group, number, members), from number `first` on. One at a time, each once."""
    standing, after = w.evaluation, first + len(names)
    if version <= standing.last:
        return "over"
    if standing.version not in (-1, version):
        return "busy"
    cursor = standing.cursor if standing.version == version else 0
    if standing.version == version and cursor == after and first != after:
        return "ok"
    if cursor != first:
        return "moved"
    if w.stop or len(w.held_out) + len(names) > w.settings.window:
        return "full"
    standing.version, standing.size, standing.cursor = version, size, after
    for name, number, members in names:
        w.groups[name] = Group(name, number, [Member() for _ in range(members)], pin=version)
        w.issue("eval:prompts", name)
    return "ok"


def conclude(w: World, epoch: int, version: int) -> str:
    """Its outcomes are on the trainer's disk."""
    standing = w.evaluation
    if w.is_fenced(epoch):
        return "FENCED"
    if standing.version != version:
        return "over"
    if standing.cursor != standing.size or w.held_out:
        return "open"
    end(w)
    return "ok"


def forgo(w: World, epoch: int, version: int) -> str:
    """Nobody can end it: what is alive of it is cancelled."""
    if w.is_fenced(epoch):
        return "FENCED"
    if w.evaluation.version != version:
        return "over"
    for g in w.held_out:
        close(w, g, "cancelled")
    give_up(w)
    return "ok"


def end(w: World) -> None:
    """The next may begin."""
    w.evaluation.outcomes, w.evaluation.boots = {}, set()
    w.evaluation.version, w.evaluation.last = -1, w.evaluation.version


def give_up(w: World) -> None:
    """It says nothing of its version."""
    end(w)
    w.evaluation.forgone += 1
