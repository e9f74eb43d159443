"""A series of any length in bounded room: its first value, and means over ever wider bins."""

from __future__ import annotations

import math
from typing import NamedTuple

POINTS = 64


class Bin(NamedTuple):
    """Some values in a row: the place of the last one, their sum, their number."""

    x: float
    total: float
    number: int


class Curve:
    """The first value by itself, then means over bins of equally many values, but for the last.

    Never more than `points` in all.

    One thread adds, another may read.
    """

    def __init__(self, points: int = POINTS) -> None:
        self._most, self._width = points - 1, 1
        self._first: tuple[tuple[float, float], ...] = ()
        self._bins: list[Bin] = []

    def add(self, x: float, y: float) -> None:
        """A value at x, which is never less than the last one's; what is not finite is left out."""
        if not math.isfinite(y):
            return
        if not self._first:
            self._first = ((x, y),)
        elif self._bins and self._bins[-1].number < self._width:
            self._bins[-1] = _joined(self._bins[-1], Bin(x, y, 1))
        else:
            self._bins.append(Bin(x, y, 1))
        if len(self._bins) > self._most:
            self._bins = _halved(self._bins)
            self._width *= 2

    def points(self) -> tuple[tuple[float, float], ...]:
        """The first value, then the last x and the mean y of each bin."""
        return self._first + tuple((x, total / number) for x, total, number in self._bins)


def _joined(one: Bin, other: Bin) -> Bin:
    return Bin(other.x, one.total + other.total, one.number + other.number)


def _halved(bins: list[Bin]) -> list[Bin]:
    pairs = [_joined(*pair) for pair in zip(bins[::2], bins[1::2], strict=False)]
    return pairs + bins[len(pairs) * 2 :]
