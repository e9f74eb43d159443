"""The acts of prompting and of the trainer, versions and their proofs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spec.evaluation import give_up
from spec.groups import Sums, book_sums, close, release
from spec.leases import is_gone, may_reap
from spec.world import TOMBSTONE_MS, Group, Member, World


def admit(w: World, names: Sequence[tuple[str, int]], *, cursor: int, next_cursor: int) -> str:
    """`names` are (group, seq)."""
    if w.cursor == next_cursor and w.admitted_from == cursor:
        return "ok"
    if w.cursor != cursor:
        return "moved"
    new = [(name, seq) for name, seq in names if name not in w.groups]
    window = w.settings.window if w.window is None else w.window
    if w.stop or len(w.alive) + len(new) > window:
        return "full"
    for name, _ in names:
        g = w.groups.get(name)
        if g and g.state == "closed" and g.ends is None:
            g.ends = w.now + TOMBSTONE_MS
    for name, seq in new:
        w.groups[name] = Group(name, seq, [Member() for _ in range(w.settings.members)])
        w.issue("prompts", name)
    w.cursor = next_cursor
    if cursor != next_cursor:
        w.admitted_from = cursor
    return "ok"


def expire(w: World, boot: str, batch: int) -> str | int:
    if is_gone(w, boot):
        return "gone"
    if not may_reap(w, boot) or batch != w.batch:
        return 0
    alive = [*w.alive, *w.held_out]
    due = sorted((g.due, g.name) for g in alive if g.due is not None and g.due <= w.now)
    for _, name in due:
        g = w.groups[name]
        is_enough = sum(m.status == "scored" for m in g.members) >= w.settings.enough
        if is_enough and g.pin is None:
            release(w, g)
        else:
            close(w, g, "expired")
    return len(due)


def lead(w: World, epoch: int, boot: str) -> str:
    if (epoch, boot) == (w.epoch, w.trainer):
        return "ok"
    if epoch <= w.epoch:
        return "FENCED"
    w.epoch, w.trainer = epoch, boot
    return "ok"


def collect(w: World, epoch: int) -> str | tuple[int, int, list[tuple[str, int, int]]]:
    """Batch, groups alive, and (group, seq, start step) of what is ready, oldest first."""
    if w.is_fenced(epoch):
        return "FENCED"
    ready = [(g.start or 0, g.seq, g.name) for g in map(w.groups.__getitem__, w.ready)]
    tickets = [(name, seq, start) for start, seq, name in sorted(ready)]
    return w.batch, len(w.alive), tickets


def refuse(w: World, epoch: int, group: str, sums: Sums) -> str:
    if w.is_fenced(epoch):
        return "FENCED"
    g = w.groups.get(group)
    if not g or g.state == "closed":
        return "closed"
    close(w, g, sums=sums)
    return "ok"


def commit(w: World, epoch: int, *, batch: int, changed: bool, sums: Mapping[str, Sums]) -> str:
    if w.is_fenced(epoch):
        return "FENCED"
    if batch > w.batch + 1:
        return "behind"
    is_counted = batch <= w.batch
    for name, parts in sums.items():
        g = w.groups.get(name)
        if g and g.state != "closed":
            close(w, g, sums=parts)
        elif not g and not is_counted:
            owed = book_sums(w, 0, 0, parts)
            w.groups[name] = Group(name, -1, [], state="closed", owed=owed)
    if is_counted:
        return "old"
    w.batch, w.step = batch, w.step + changed
    return "ok"


def announce(
    w: World, epoch: int, version: int, *, min_version: int, step: int, fingerprint: str
) -> str:
    if epoch < w.epoch:
        return "FENCED"
    if epoch > w.epoch:
        return "leaderless"
    if version in w.versions:
        if w.versions[version][1] != fingerprint:
            return "taken"
        if version == w.version:
            w.manifest = (version, epoch)
        return "ok"
    if version <= w.version or version < min_version:
        return "old"
    w.versions[version] = (step, fingerprint)
    w.version, w.manifest = version, (version, epoch)
    return "ok"


def confirm(w: World, boot: str, version: int, fingerprint: str) -> str:
    if is_gone(w, boot):
        return "gone"
    if version not in w.versions:
        return "unknown" if version > w.version else "forgotten"
    if w.versions[version][1] != fingerprint:
        return "wrong"
    w.proofs.add((boot, version))
    w.boots[boot].rejected = ""
    return "ok"


def remark(w: World, boot: str, what: str, why: str) -> str:
    if is_gone(w, boot):
        return "gone"
    setattr(w.boots[boot], what, why)
    return "ok"


def narrow(w: World, epoch: int, *, batch: int, window: int) -> str:
    """Between one step's groups and the run's own; what is alive stays."""
    if w.is_fenced(epoch):
        return "FENCED"
    if batch < w.narrowed_at:
        return "old"
    w.window = max(w.settings.per_step, min(w.settings.window, window))
    w.narrowed_at = batch
    return "ok"


def rollback(w: World, epoch: int, step: int) -> str:
    """The trainer lost what it made after `step`."""
    if w.is_fenced(epoch):
        return "FENCED"
    if step >= w.step:
        return "ok"
    w.versions = {v: made for v, made in w.versions.items() if made[0] <= step}
    if w.version not in w.versions:
        w.manifest = None
    for g in w.alive:
        if g.start is not None and g.start > step:
            g.start = step
    w.step = step
    return "ok"


def finish(w: World, epoch: int, outcome: str, reason: str) -> str:
    if w.is_fenced(epoch):
        return "FENCED"
    if not w.stop:
        w.stop, w.reason = outcome, reason
    for g in [*w.alive, *w.held_out]:
        close(w, g, "cancelled")
    if w.evaluation.version >= 0:
        give_up(w)
    return "ok"
