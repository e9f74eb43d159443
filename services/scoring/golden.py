"""Golden sets: answers whose verdicts are known, and what a scorer makes of them now.

One JSON object a line. Where a scorer runs is in `ensemble`; when a service asks, in `drift`; the
command `sluice score test` in `trial`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from pipeline.errors import ConfigError
from pipeline.messages import Finish
from pipeline.protocols import Answer, Verdict
from pipeline.verdicts import Fault

Grade = Callable[[Answer], Awaitable[Verdict]]

LONGEST = 60
"""Characters of a text that is shown."""
LIKE, NEAR = 1e-6, 1e-9
"""So far a reward may be from the number expected, by its size or beside zero."""


class Known(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line: a completion to the reference `answer`, and what is `expected` of it.

    true or false speaks of the outcome, 1 or 0, and a number of the reward.
    """

    id: Annotated[str, Meta(min_length=1)] | int
    answer: Any
    completion: str
    expected: bool | float
    prompt: str = ""
    task: str = ""
    finish: Finish = "stop"

    def asked(self) -> Answer:
        """As a scorer sees it: fresh, since what it said before is not the question."""
        return Answer(
            text=self.completion,
            prompt=self.prompt,
            reference=self.answer,
            finish=self.finish,
            task=self.task,
            fresh=True,
        )


class Found(NamedTuple):
    """What was made of a line: a verdict, or a fault."""

    known: Known
    verdict: Verdict | None = None
    fault: Fault | None = None

    @property
    def got(self) -> float | None:
        """What the expected value speaks of; None where there is no verdict."""
        if self.verdict is None:
            return None
        by_outcome = isinstance(self.known.expected, bool)
        return self.verdict.outcome if by_outcome else self.verdict.reward

    @property
    def is_right(self) -> bool:
        """A fault never is."""
        got, wanted = self.got, float(self.known.expected)
        return got is not None and math.isclose(got, wanted, rel_tol=LIKE, abs_tol=NEAR)

    @property
    def why(self) -> str:
        """The fault, or the verdict's own reason."""
        return str(self.fault) if self.fault else self.verdict.reason if self.verdict else ""

    def __str__(self) -> str:
        why = f" ({cell(self.why)})" if self.why else ""
        wanted = msgspec.json.encode(self.known.expected).decode()
        got = "no verdict" if self.got is None else f"{self.got:g}"
        return f"{cell(str(self.known.id))}: expected {wanted}, got {got}{why}"


def read_golden(path: str | Path) -> tuple[Known, ...]:
    """The lines of a file, relative to where `sluice` was called. Raises ConfigError.

    That names the line; also for an id that stands twice, and for a file without any line.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        remedy = "name a file of JSON objects, one a line"
        raise ConfigError(str(path), None, rule=f"cannot be read ({why})", remedy=remedy) from exc
    found: dict[str, Known] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            known = _read(line, at=f"{path}, line {number}")
            if str(known.id) in found:
                rule, remedy = "another line has that id", "give each line its own"
                raise ConfigError(f"{path}, line {number}", known.id, rule=rule, remedy=remedy)
            found[str(known.id)] = known
    if not found:
        raise ConfigError(str(path), None, rule="holds no line", remedy="add answers to it")
    return tuple(found.values())


def _read(line: bytes, *, at: str) -> Known:
    try:
        return msgspec.json.decode(line, type=Known, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        remedy = "a line has id, answer, completion and expected, and maybe prompt, task and finish"
        raise ConfigError(at, None, rule=str(exc), remedy=remedy) from exc


def cell(text: str) -> str:
    """On one line, without what a terminal would obey, and cut where it is long."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 1] + "…"


async def ask(grade: Grade, known: Known) -> Found:
    """One line. Raises SluiceError where nothing can be asked any more."""
    try:
        return Found(known, await grade(known.asked()))
    except Fault as fault:
        return Found(known, fault=fault)
