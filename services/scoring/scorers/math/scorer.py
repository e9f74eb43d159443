r"""The scorer `math`: whether a boxed answer is worth what the reference is, exactly.

It needs no limit of time, since reading and working out are bounded by counting; the worker that it
runs in has one nevertheless.
"""

from __future__ import annotations

import functools
from decimal import Decimal
from math import isfinite
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from pipeline.errors import SluiceError
from pipeline.protocols import Answer, Verdict
from services.scoring.scorers.math.answers import answer_in, reference_in
from services.scoring.scorers.math.compare import Given, Reference, agrees
from services.scoring.scorers.math.formulas import Formula, beside, formula_of
from services.scoring.scorers.math.limits import TooLarge, Undefined
from services.scoring.scorers.math.policies import (
    BasesPolicy,
    PercentPolicy,
    Policies,
    UnboxedPolicy,
    UnitsPolicy,
)
from services.scoring.scorers.math.tokens import spelling
from services.scoring.scorers.reasons import NoAnswer, Why, verdict

CACHED = 1024
"""Formulas: members of a group have one reference, and many give the same answer."""

KEPT = 300
"""Characters: a longer formula is read anew, for what is read of it takes 100 times as much."""

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


class Math:
    r"""1 where what stands in the last \boxed or \fbox of the text equals the reference, else 0.

    No box, or one that was cut off, is no answer; neither is anything within reasoning that was not
    ended. The reference is a formula in LaTeX, a number, or a text with the formula in its last box
    or behind ####, as in a worked solution.
    """

    version = "3"

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
        self._formula = functools.lru_cache(maxsize=CACHED)(formula_of)
        for pairs, wanted in ((EQUAL, True), (UNEQUAL, False)):
            for reference, formula in pairs:
                if self.compare(reference=reference, formula=formula).right != wanted:
                    raise SluiceError(f"math {self.version} is wrong: {reference} and {formula}")

    def __call__(self, answer: Answer) -> Verdict:
        """Raises ValueError for a reference that is no formula."""
        return verdict(self.grade(answer).why)

    def grade(self, answer: Answer) -> Graded:
        """The verdict and its reason. Raises ValueError for a reference that is no formula."""
        reference = reference_in(_written(answer.reference))
        try:
            found = answer_in(answer, self._policies.unboxed)
        except NoAnswer as nothing:
            return Graded(False, nothing.why)
        return self.compare(reference=reference, formula=found)

    def compare(self, *, reference: str, formula: str) -> Graded:
        """Two formulas, neither in a box. What is written alike is right, understood or not."""
        wanted, given = self._read(reference), self._read(formula)
        if wanted.tokens and spelling(wanted.tokens) == spelling(given.tokens):
            return Graded(True, Why.RIGHT, formula)
        if wanted.value is None or given.value is None:
            return Graded(False, given.flaw or wanted.flaw or Why.NOT_UNDERSTOOD, formula)
        try:
            pair = Reference(beside(wanted, given)), Given(beside(given, wanted))
            right = agrees(*pair, self._policies)
        except TooLarge:
            return Graded(False, Why.TOO_LARGE, formula)
        except Undefined:
            return Graded(False, Why.NO_VALUE, formula)
        return Graded(right, Why.RIGHT if right else Why.WRONG, formula)

    def _read(self, written: str) -> Formula:
        return (self._formula if len(written) <= KEPT else formula_of)(written)


def _written(reference: Any) -> str:
    """As people write it, not as 1e-07. Raises ValueError for what is neither text nor number."""
    if isinstance(reference, list) and len(reference) == 1:
        return _written(reference[0])
    if isinstance(reference, float) and isfinite(reference):
        return format(Decimal(repr(reference)), "f")
    if not isinstance(reference, str | int):
        raise ValueError(f"the reference is no formula: {str(reference)[:80]}")
    return str(reference)
