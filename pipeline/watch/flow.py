"""What is wrong with a run between its parts: who waits for whom, and what runs short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.watch.advice import work_of
from pipeline.watch.finding import Finding, listed, plural
from pipeline.watch.look import Snapshot, keepers
from pipeline.watch.seen import newest
from pipeline.watch.waits import (
    COMPLETIONS,
    FRESHER,
    GROUPS,
    MEMORY,
    OLDER_GROUPS,
    PROMPTS,
    SURE_SECONDS,
    WINDOW,
    Stage,
    circle,
    hangs,
    idle_for,
    memory,
    starved_by,
    sure,
)

STILL_SECONDS = 60.0
"""Without the end of a held-out group, while some are alive."""
SLOW_SECONDS = 3.0
"""Of work that lies before the scorers while training waits: it piles up."""


def hung_scorers(among: Mapping[str, Stage]) -> Iterator[Finding]:
    """No verdict for long. A judge may be that slow, so it is not grave."""
    for seen in among["scoring"].able:
        if hangs(seen):
            name, members = seen.beat.instance, int(seen.beat.gauges.get("waiting_members", 0))
            hands = f" of the {plural(members, 'member')} that they have" if members else ""
            judged = f"have judged none{hands} for {seen.waited_seconds:.0f} s"
            yield Finding("scorers", name, f"the scorers of {name} {judged}", grave=False)


def in_a_circle(snapshot: Snapshot, among: Mapping[str, Stage]) -> Iterator[Finding]:
    """Everybody in it waits, and nobody outside of it can end that."""
    if path := circle(snapshot, among):
        told = ", ".join(f"{who} waits for {what} from {whom}" for who, what, whom in path)
        who = " ".join(sorted(who for who, _, _ in path))
        yield Finding("circle", who, f"a circle, in which nobody can move: {told}")


def slow_scoring(snapshot: Snapshot, among: Mapping[str, Stage]) -> Iterator[Finding]:
    """Completions pile up before the scorers while training waits."""
    scoring, training = among["scoring"], among["training"]
    done = [work_of(seen) for seen in scoring.able]
    rate = sum(work.amount / work.active_seconds for work in done if work.active_seconds)
    seconds = snapshot.completions / rate if rate else 0.0
    is_idle = COMPLETIONS in scoring.waits
    if seconds >= SLOW_SECONDS and not is_idle and GROUPS in training.waits:
        sentence = (
            f"scoring is too slow: {plural(snapshot.completions, 'completion')} to score at"
            f" {rate:.3g} a second are {seconds:.0f} s of work, and training waits for groups"
        )
        yield Finding("slow", "scoring", sentence, grave=False)


def small_window(snapshot: Snapshot, among: Mapping[str, Stage]) -> Iterator[Finding]:
    """All places are out, and still an engine idles and training waits, while somebody works."""
    training = among["training"]
    idle = [
        seen.beat.instance
        for seen in among["inference"].able
        if seen.beat.waiting_for in (PROMPTS, FRESHER) and sure(seen)
    ]
    starves = GROUPS in training.waits and training.seconds >= SURE_SECONDS
    at_work = any(stage.able and not stage.waits for stage in among.values())
    if snapshot.places.alive >= snapshot.window and idle and starves and at_work:
        narrowed = snapshot.window < snapshot.window_most
        why = (
            f"lag.control holds it below its {snapshot.window_most}, since older tokens fit worse"
            if narrowed
            else "a larger lag.max widens it"
        )
        sentence = (
            f"the window is {'narrowed' if narrowed else 'too small'}: all"
            f" {plural(snapshot.window, 'place')} are out while"
            f" {listed(idle)} idles and training waits for groups; {why}"
        )
        yield Finding("window", "", sentence, grave=False)


def starved_kinds(snapshot: Snapshot) -> Iterator[Finding]:
    """What is sampled and hardly trained, since it comes too late: by the trainer's own counts."""
    for seen in newest(snapshot.beats):
        for kind in seen.beat.starved:
            name = f"task {kind.name!r}" if kind.by == "task" else _length(kind.name)
            sentence = (
                f"{name} is starved: {kind.trained_share:.1%} of what is trained, and"
                f" {kind.sampled_share:.1%} of what was sampled"
            )
            yield Finding("starved", f"{kind.by} {kind.name}", sentence, grave=False)


def _length(bound: str) -> str:
    return f"what has {'more tokens' if bound == 'more' else f'up to {bound} tokens'}"


def slow_evaluation(snapshot: Snapshot) -> Iterator[Finding]:
    """Held-out groups of which none has ended for long: the run goes on without their verdict."""
    standing = snapshot.evaluation
    if standing.version < 0 or standing.idle_seconds < STILL_SECONDS:
        return
    kept = [who for who, version in keepers(snapshot).items() if version == standing.version]
    verb = "keeps" if len(kept) == 1 else "keep"
    where = f"{listed(kept)} {verb} its weights" if kept else "no engine has its weights any more"
    sentence = (
        f"the evaluation of version {standing.version} has stood still for"
        f" {standing.idle_seconds:.0f} s: {standing.left} of {plural(standing.size, 'group')} are"
        f" to go, {standing.prompts} of them in generation; {where}"
    )
    yield Finding("evaluation", "", sentence, grave=False)


def no_more_data(snapshot: Snapshot) -> Iterator[Finding]:
    """Nothing is admitted any more."""
    if snapshot.state.eof:
        left, cursor = plural(snapshot.places.alive, "group"), snapshot.state.cursor
        sentence = f"the data is at its end after {plural(cursor, 'prompt')}, with {left} to go"
        yield Finding("data", "", sentence, grave=False)


def letters(snapshot: Snapshot) -> Iterator[Finding]:
    """Work that was given up."""
    if snapshot.dead_letters:
        sentence = f"{plural(snapshot.dead_letters, 'dead letter')} to read"
        yield Finding("letters", "", sentence, grave=False)


def waiting(snapshot: Snapshot, among: Mapping[str, Stage]) -> Iterator[Finding]:
    """A service whose processes all wait for one thing is one sentence; else each has its own."""
    for service, stage in among.items():
        culprits = [str(culprit) for culprit in starved_by(snapshot, service, among)]
        by = f"; starved by {listed(culprits)}" if culprits else ""
        for who, what, seconds in _waiters(service, stage):
            if what == GROUPS and _is_enough(snapshot) and seconds < SURE_SECONDS:
                continue  # its beat is older than this look: by now it may be at them
            told = f"{who} {_waits(what, seconds)}{_where(snapshot, what)}{by}"
            yield Finding("wait", who, told, grave=False)


def _waiters(service: str, stage: Stage) -> list[tuple[str, str, float]]:
    if len(stage.waits) == 1:
        return [(service, what, stage.seconds) for what in stage.waits]
    return [
        (seen.beat.instance, what, seen.waited_seconds)
        for seen in stage.able
        if (what := idle_for(seen))
    ]


def _waits(what: str, seconds: float) -> str:
    if seconds < SURE_SECONDS:
        return f"waits for {what}"
    return f"has waited for {what} for {seconds:.0f} s"


def _is_enough(snapshot: Snapshot) -> bool:
    return snapshot.places.groups >= snapshot.per_step


def _where(snapshot: Snapshot, what: str) -> str:
    places = snapshot.places
    if what in (GROUPS, OLDER_GROUPS):
        enough = ", enough for a step" if what == GROUPS and _is_enough(snapshot) else ""
        away = f"{places.prompts} in generation, {places.open} in scoring"
        return f": {away}, {places.groups} ready{enough}"
    if what == WINDOW:
        return f": {places.alive} of {snapshot.window} places are out"
    return f": {memory(snapshot)}" if what == MEMORY else ""
