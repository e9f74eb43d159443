r"""The scorer `math`: whether a boxed answer is worth what the reference is, exactly.

It needs no limit of time, since reading and working out are bounded by counting; the worker that it
runs in has one nevertheless.
"""

from __future__ import annotations

import functools
import re
from decimal import Decimal
from math import isfinite
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from pipeline.errors import SluiceError
from pipeline.protocols import Answer, Verdict
from services.scoring.scorers.math.answers import NoAnswer, Why, answer_in, without_boxes
from services.scoring.scorers.math.compare import Given, Reference, agrees
from services.scoring.scorers.math.kinds import Expression, Value
from services.scoring.scorers.math.likeness import read_like
from services.scoring.scorers.math.limits import NotUnderstood, TooLarge, Undefined
from services.scoring.scorers.math.numerals import number
from services.scoring.scorers.math.policies import (
    BasesPolicy,
    PercentPolicy,
    Policies,
    UnboxedPolicy,
    UnitsPolicy,
)
from services.scoring.scorers.math.reading import read
from services.scoring.scorers.math.split import trimmed
from services.scoring.scorers.math.tokens import Token, spelling, tokens
from services.scoring.scorers.math.trees import minus

CACHED = 1024
"""Formulas: members of a group have one reference, and many give the same answer."""

PLAIN = re.compile(r"\s*(-?)(\d{1,200}(?:\.\d{1,200})?)\s*", re.ASCII)

EQUAL = (
    ("42", "42"),
    ("8", "2^3"),
    ("1000", "10^3"),
    (r"\frac{1}{2}", r"\frac12"),
    (r"\frac{1}{12}", "0.0833333333333333"),
    (r"\frac{x+2}{7}", r"\frac{x}{7}+\frac{2}{7}"),
    ("1,-2", "-2,1"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt2}{2}"),
    ("13", r"\text{13}"),
    ("70000", r"\$70,000"),
)
UNEQUAL = (
    ("42", "41"),
    ("8", "2^4"),
    (r"\pm 2021", "2021"),
    (r"\frac{1}{2}", r"\frac13"),
    (r"1 - \frac{1}{e}", r"1 + \frac{1}{e}"),
    ("1331 and 1728", "1728"),
    ("(2,3)", "(3,2)"),
    ("(0,1)", "[0,1]"),
    ("n=3k", "3"),
    (r"\text{Yes}", r"\text{No}"),
)
"""What it must know before it grades anything: one that calls everything unequal is broken."""


class Graded(NamedTuple):
    """Whether the answer is right, why it is not, and what was taken for the answer."""

    right: bool
    why: Why
    answer: str = ""


class Formula(NamedTuple):
    """What was read: its tokens, and its value or why it has none."""

    tokens: tuple[Token, ...]
    value: Value | None
    flaw: Why | None = None


class Math:
    r"""1 where what stands in the last \boxed or \fbox of the text equals the reference, else 0.

    No box, or one that was cut off, is no answer; neither is anything within reasoning that was not
    ended. The reference is a formula in LaTeX without a box around it.
    """

    version = "2"

    def __init__(
        self,
        *,
        percent: PercentPolicy = "value",
        rounding: Annotated[int, Meta(ge=1)] = 12,
        bases: BasesPolicy = "same",
        units: UnitsPolicy = "needed",
        unboxed: UnboxedPolicy = "refused",
    ) -> None:
        """Raises SluiceError where this installation gets one of the known pairs wrong."""
        self._policies = Policies(percent, rounding, bases, units, unboxed)
        self._formula = functools.lru_cache(maxsize=CACHED)(_formula)
        for pairs, wanted in ((EQUAL, True), (UNEQUAL, False)):
            for reference, formula in pairs:
                if self.compare(reference=reference, formula=formula).right != wanted:
                    raise SluiceError(f"math {self.version} is wrong: {reference} and {formula}")

    def __call__(self, answer: Answer) -> Verdict:
        """Raises ValueError for a reference that is empty."""
        return Verdict(reward=float(self.grade(answer).right))

    def grade(self, answer: Answer) -> Graded:
        """The verdict and its reason. Raises ValueError for a reference that is empty."""
        reference = _written(answer.reference)
        if not reference.strip(" \t\n$"):
            raise ValueError("the reference is no formula: it is empty")
        try:
            found = answer_in(answer.text, prompt=answer.prompt, unboxed=self._policies.unboxed)
        except NoAnswer as nothing:
            return Graded(False, nothing.why)
        return self.compare(reference=reference, formula=found)

    def compare(self, *, reference: str, formula: str) -> Graded:
        """Two formulas, neither in a box. What is written alike is right, understood or not."""
        wanted, given = self._formula(without_boxes(reference)), self._formula(formula)
        if wanted.tokens and spelling(wanted.tokens) == spelling(given.tokens):
            return Graded(True, Why.RIGHT, formula)
        if wanted.value is None or given.value is None:
            return Graded(False, given.flaw or wanted.flaw or Why.NOT_UNDERSTOOD, formula)
        try:
            right = agrees(*_alike(wanted, given), self._policies)
        except TooLarge:
            return Graded(False, Why.TOO_LARGE, formula)
        except Undefined:
            return Graded(False, Why.NO_VALUE, formula)
        return Graded(right, Why.RIGHT if right else Why.WRONG, formula)


def _written(reference: Any) -> str:
    """As people write it: in 1e-07 the e would be a number of its own."""
    if isinstance(reference, float) and isfinite(reference):
        return format(Decimal(repr(reference)), "f")
    return str(reference)


def _alike(wanted: Formula, given: Formula) -> tuple[Reference, Given]:
    assert wanted.value is not None and given.value is not None, "both were read"
    return (
        Reference(read_like(given.value, wanted.value, wanted.tokens)),
        Given(read_like(wanted.value, given.value, given.tokens)),
    )


def _formula(written: str) -> Formula:
    """What is written, read; never raises."""
    if plain := PLAIN.fullmatch(written):
        value = number(plain[2])
        signed = minus(value) if plain[1] else value
        return Formula((Token("plain", plain[1] + plain[2]),), Expression(signed))
    try:
        found = tuple(trimmed(tokens(written)))
    except NotUnderstood:
        return Formula((Token("long", written),), None, Why.NOT_UNDERSTOOD)
    try:
        return Formula(found, read(found))
    except NotUnderstood:
        return Formula(found, None, Why.NOT_UNDERSTOOD)
    except (TooLarge, Undefined) as exc:
        why = Why.TOO_LARGE if isinstance(exc, TooLarge) else Why.NO_VALUE
        return Formula(found, None, why)
