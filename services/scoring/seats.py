"""Where each scorer of a run runs, and how it is asked there.

What comes of their verdicts is in `ensemble`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from pipeline.errors import ConfigError
from pipeline.families import SCORERS
from pipeline.plugins import check, check_call, find, name_of, options_of
from pipeline.run import Scoring, Spec
from pipeline.verdicts import AT, Term, called, version_of
from services.scoring.asking import Asking
from services.scoring.contents import content_hash
from services.scoring.loops import Loop
from services.scoring.metrics import Numbers
from services.scoring.pool import Pool, machine_bytes

SIDE_BY_SIDE = 64
"""Answers with an async scorer at once, where it does not say how many."""

Place = Pool | Loop


class Seat(NamedTuple):
    """A scorer of the run: how it is called, its version, its part in the total, how it is asked.

    `contents` is the hash of its source and options, `number` the one that it has at its `place`,
    `reads_drawn` tells whether it is shown how tokens were drawn, and an answer has `seconds`.
    """

    called: str
    version: str
    contents: str
    term: Term
    ask: Asking
    place: Place
    number: int
    reads_drawn: bool
    seconds: float

    @property
    def name(self) -> str:
        """What stands in a score."""
        return f"{self.called}/{self.version}@{self.contents}"


def seats_of(
    found: Sequence[Term], scoring: Scoring, *, numbers: Numbers, policy: str
) -> list[Seat]:
    """A seat for each of the scorers, nothing started yet; raises ConfigError for a wrong one."""
    things = [(term.spec, _find(term.spec)) for term in found]
    names = called(found)
    places = _places(names, things, scoring, numbers=numbers, policy=policy)
    seats = []
    for name, term, (spec, thing), (place, number) in zip(
        names, found, things, places, strict=True
    ):
        seconds = term.timeout_seconds or scoring.timeout_seconds
        ask = Asking(
            partial(place.grade, number, seconds=seconds),
            concurrency=term.concurrency or (SIDE_BY_SIDE if isinstance(place, Loop) else 0),
            retries=scoring.retries,
            on_retry=numbers.retries.inc,
        )
        version, contents = version_of(thing), content_hash(spec, thing)
        reads = getattr(thing, "reads_drawn", False)
        seats.append(Seat(name, version, contents, term, ask, place, number, reads, seconds))
    return seats


def _places(
    names: Sequence[str],
    things: Sequence[tuple[Spec, Callable[..., Any]]],
    scoring: Scoring,
    *,
    numbers: Numbers,
    policy: str,
) -> list[tuple[Place, int]]:
    """Where each scorer runs, and its number there: plain ones share workers, async ones do not."""
    plain = [spec for spec, thing in things if not is_async(thing)]
    processes = len(things) - len(plain) + (scoring.workers if plain else 0)
    memory_bytes, replaced = machine_bytes() // (2 * processes), numbers.replaced.inc
    pool = Pool(
        plain,
        workers=scoring.workers,
        timeout_seconds=scoring.timeout_seconds,
        memory_bytes=memory_bytes,
        on_replaced=replaced,
        policy=policy,
    )
    return [
        (
            Loop(spec, called=name, memory_bytes=memory_bytes, on_replaced=replaced, policy=policy),
            0,
        )
        if is_async(thing)
        else (pool, plain.index(spec))
        for name, (spec, thing) in zip(names, things, strict=True)
    ]


def started(seat: Seat) -> Seat:
    """What only its process knows: its version, and how many answers it takes in one call.

    Raises ConfigError where it would be killed within the time that it gives an answer itself.
    """
    ready, place = seat.place.ready, seat.place
    if (needed := ready.seconds[seat.number]) > seat.seconds:
        rule = f"may take an answer {needed:g} s, and has {seat.seconds:g} s"
        remedy = f"give it less time by its options, or more: timeout_seconds = {needed:g}"
        raise ConfigError(AT, seat.called, rule=rule, remedy=remedy)
    several = max(1, ready.batches[seat.number])
    most = place.workers * several if isinstance(place, Pool) else SIDE_BY_SIDE
    seat.ask.slots = seat.ask.concurrency or most
    return seat._replace(version=ready.versions[seat.number])


def is_async(thing: Any) -> bool:
    """Whether a function, or the `__call__` of a class or an object, is `async def`."""
    return inspect.iscoroutinefunction(thing) or inspect.iscoroutinefunction(thing.__call__)


def _find(spec: Spec) -> Callable[..., Any]:
    """Checked here, so that a mistake costs no process; a plain scorer is built in its worker."""
    thing: Callable[..., Any] = find(SCORERS, spec, AT)
    check(thing, options_of(spec), AT, given=frozenset({"policy"}))
    if inspect.isclass(thing) and not any("__call__" in vars(base) for base in thing.__mro__):
        rule, remedy = "makes nothing that can be asked", "give the class a __call__(self, answer)"
        raise ConfigError(AT, name_of(spec, AT), rule=rule, remedy=remedy)
    check_call(thing, f"{AT}, {name_of(spec, AT)}", None)
    if is_async(thing) and hasattr(thing, "batch"):
        rule, remedy = "is async and has a batch", "answers in batches are for plain scorers"
        raise ConfigError(AT, name_of(spec, AT), rule=rule, remedy=remedy)
    return thing
