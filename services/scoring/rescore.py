"""`sluice score rescore`: the completions of a run's step records, judged again by another scorer.

Reads the run's folder and nothing else, a step at a time, and writes nothing: the run may go on
beside it, or have ended. What is made of the verdicts is in `comparison`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from pipeline.errors import ConfigError, SluiceError
from pipeline.messages import Member, Prompt, Score
from pipeline.metrics import Metrics
from pipeline.model.tokens import Tokenizer
from pipeline.plugins import name_of
from pipeline.protocols import Verdict
from pipeline.recorded import FOLDER, Lying, Place, Recorded, newest, unseal
from pipeline.run import Run
from pipeline.verdicts import AT, Fault, answer_of, outcome_term, raised, terms
from services.scoring.comparison import Again, Before, Comparison, Tally, lines
from services.scoring.ensemble import Ensemble, seated
from services.scoring.metrics import Numbers
from services.scoring.seats import Seat
from services.scoring.trial import named

GROUPS_AT_ONCE = 16

Decode = Callable[[bytes], str]


class Recalled(NamedTuple):
    """A group as a step consumed it."""

    name: str
    prompt: Prompt
    members: dict[int, Member]


class Regraded(NamedTuple):
    """A group, and what the new scorer says of each member."""

    group: Recalled
    verdicts: dict[int, Verdict | Fault]


def rescore(run: Run, scorer: str, *, options: Sequence[str], as_json: bool) -> None:
    """Prints what would change; `options` are KEY=VALUE, as in `trial`.

    Raises ConfigError for bad input, and where the run has no completion to be judged, SluiceError
    where its records cannot be read, and where the scorer has no verdict on any.
    """
    term = named(scorer, options)
    numbers = Numbers(Metrics("scoring"))
    ensemble = seated([term], run.scoring, numbers=numbers, policy=run.model.path)
    found = asyncio.run(_compare(run, ensemble, Steps(run.folder / FOLDER)))
    for text in [msgspec.json.encode(found).decode()] if as_json else lines(found):
        print(text)
    if found.faults and not found.all.completions:
        reason = max(found.faults, key=found.faults.__getitem__)
        raise SluiceError(f"{found.scorer} has a verdict on no completion, mostly {reason}")


class Steps:
    """Steps that are recorded as this begins, and what is kept of them."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError where there are none."""
        self._folder, self._batches = folder, [*newest(folder)]
        self.count = self.unrecorded = 0
        if not self._batches:
            remedy = "name a run that has made steps, from where it was started"
            raise ConfigError(str(folder), None, rule="there is no step record", remedy=remedy)

    def groups(self) -> Iterator[Recalled]:
        """In the order in which they were trained.

        Raises ConfigError where no step has its completions, SluiceError for a damaged file.
        """
        for batch in self._batches:
            yield from self._of(batch)
        if not self.count:
            rule = 'of no step the completions were recorded (training.record = "off")'
            remedy = 'only what is trained with training.record = "on" can be scored again'
            raise ConfigError(str(self._folder), None, rule=rule, remedy=remedy)

    def _of(self, batch: int) -> Iterator[Recalled]:
        """A trainer that took over may have planned the batch anew, and removed what was read."""
        while (path := newest(self._folder).get(batch)) is not None:
            try:
                groups = _groups(path)
            except (OSError, SluiceError) as exc:
                if newest(self._folder).get(batch) != path:
                    continue
                raise SluiceError(f"{path} cannot be read: {exc}") from exc
            self.count += bool(groups)
            self.unrecorded += not groups
            yield from groups
            return


def _groups(path: Path) -> list[Recalled]:
    places = unseal(path, Recorded).places
    with closing(Lying(str(path), places)) as lying:
        return [_recalled(lying, name, place) for name, place in places.items() if place.members]


def _recalled(lying: Lying, name: str, place: Place) -> Recalled:
    read = {number: lying.member(name, number) for number in sorted(place.members)}
    prompt = next(prompt for prompt, _ in read.values())
    return Recalled(name, prompt, {number: member for number, (_, member) in read.items()})


async def _compare(run: Run, ensemble: Ensemble, steps: Steps) -> Comparison:
    decode = Tokenizer(run.model.path).decode
    await ensemble.start()
    try:
        (seat,) = ensemble.seats
        found = Comparison(run=run.name, scorer=seat.name, all=Tally())
        before = partial(_before, called=seat.called, gives_outcome=_gives_outcome(run, seat))
        async for group, verdicts in _regraded(seat, steps.groups(), decode):
            scores = {number: member.score for number, member in group.members.items()}
            again = [Again(number, before(scores[number]), now) for number, now in verdicts.items()]
            found.was += sorted({s.scorer for s in scores.values() if s} - {*found.was})
            found.add(group.name, group.prompt.task, again)
    finally:
        await ensemble.close()
    found.steps, found.unrecorded = steps.count, steps.unrecorded
    return found


async def _regraded(
    seat: Seat, groups: Iterator[Recalled], decode: Decode
) -> AsyncIterator[Regraded]:
    """In order, some of them at once: the scorer takes what it has room for."""
    flying: deque[asyncio.Task[Regraded]] = deque()
    for group in groups:
        flying.append(asyncio.create_task(_grade(seat, group, decode)))
        if len(flying) >= GROUPS_AT_ONCE:
            yield await flying.popleft()
    while flying:
        yield await flying.popleft()


async def _grade(seat: Seat, group: Recalled, decode: Decode) -> Regraded:
    asked = (_verdict(seat, group.prompt, one, decode=decode) for one in group.members.values())
    return Regraded(group, dict(zip(group.members, await asyncio.gather(*asked), strict=True)))


async def _verdict(
    seat: Seat, prompt: Prompt, member: Member, *, decode: Decode
) -> Verdict | Fault:
    try:
        answer = answer_of(prompt, member.completion, decode)
    except Exception as exc:  # one member whose text or reference cannot be read; it is told
        return raised(exc)
    try:
        return await seat.ask(answer if seat.reads_drawn else replace(answer, drawn=None))
    except Fault as fault:
        return fault


def _gives_outcome(run: Run, seat: Seat) -> bool:
    """Whether the run's outcomes are those of a scorer of this name."""
    return seat.called == name_of(outcome_term(terms(run.scoring.scorers)).spec, AT)


def _before(score: Score | None, *, called: str, gives_outcome: bool) -> Before | None:
    """What the scorer of that name said of it, or where the run has none, all of them together."""
    if score is None or score.reward is None:
        return None
    outcome = score.reward if score.outcome is None else score.outcome
    for name, part in (score.parts | score.shadow).items():
        if name.partition("/")[0] == called:
            return Before(part, outcome if gives_outcome else part)
    return Before(score.reward, outcome)
