"""The scorer `numeric`: whether an answer's number is within a tolerance of the reference.

Where the answer stands is in `marks`, how a number is read in `figures`.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

from msgspec import Meta

from pipeline.protocols import Answer, Verdict
from services.scoring.scorers.math.policies import PercentPolicy
from services.scoring.scorers.reasons import NoAnswer, Why, verdict
from services.scoring.scorers.text.figures import Figure, Figures
from services.scoring.scorers.text.marks import read_answer
from services.scoring.scorers.text.strings import compiled

LARGEST = 1e300


class Numeric:
    """1 where the one number of the answer is as near to the reference as allowed, else 0.

    Near means |answer - reference| <= max(absolute, relative * |reference|), worked out as exact
    fractions: a tolerance is the decimal that is written. The reference is a number, or a text
    that would be read as one in an answer.
    """

    version = "1"

    def __init__(
        self,
        *,
        relative: Annotated[float, Meta(ge=0, lt=1)] = 0.0,
        absolute: Annotated[float, Meta(ge=0, le=LARGEST)] = 0.0,
        percent: PercentPolicy = "value",
        units: tuple[str, ...] = (),
        extract: str | None = None,
    ) -> None:
        """`units` can stand beside the number, and are no matter; no other word can.

        `extract` is where the answer stands: `marks.read_answer`. Raises ConfigError for what is no
        pattern.
        """
        self._relative, self._absolute = _exact(relative), _exact(absolute)
        self._percent, self._figures = percent, Figures(units)
        self._extract = None if extract is None else compiled(extract, at="scoring.scorers.extract")

    def __call__(self, answer: Answer) -> Verdict:
        """Raises ValueError for a reference that is no number."""
        reference = self._reference(answer.reference)
        try:
            figure = read_answer(answer, self._extract, self._figures.read)
        except NoAnswer as nothing:
            return verdict(nothing.why)
        return verdict(Why.RIGHT if self._near(figure, reference) else Why.WRONG)

    def _near(self, figure: Figure, reference: Figure) -> bool:
        pairs = [(figure.value, reference.value)]
        if not (figure.percent and reference.percent):
            pairs = [(a, b) for a in self._values(figure) for b in self._values(reference)]
        return any(
            abs(given - wanted) <= max(self._absolute, self._relative * abs(wanted))
            for given, wanted in pairs
        )

    def _values(self, figure: Figure) -> list[Fraction]:
        """What 50% is worth: 1/2, 50, or either."""
        if not figure.percent or self._percent == "unit":
            return [figure.value]
        part = figure.value / 100
        return [part] if self._percent == "value" else [part, figure.value]

    def _reference(self, reference: Any) -> Figure:
        if isinstance(reference, int | float) and not isinstance(reference, bool):
            return Figure(_exact(reference), percent=False)
        try:
            return self._figures.read(reference if isinstance(reference, str) else "", alone=True)
        except NoAnswer as nothing:
            raise ValueError(f"the reference is no number: {nothing.why}") from nothing


def _exact(number: float) -> Fraction:
    """A float as the decimal that it is written as: 0.1 is 1/10."""
    return Fraction(number) if isinstance(number, int) else Fraction(Decimal(repr(number)))
