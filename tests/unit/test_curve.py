"""A curve of any number of values: what it keeps, and how much room it takes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pipeline.curve import Curve


def curve(values: list[float], points: int = 8) -> Curve:
    made = Curve(points)
    for step, value in enumerate(values, start=1):
        made.add(step, value)
    return made


def test_a_short_curve_is_its_values() -> None:
    assert curve([0.5, 0.25, 1.0]).points() == ((1, 0.5), (2, 0.25), (3, 1.0))
    assert curve([]).points() == ()


@pytest.mark.parametrize("length", [8, 9, 10, 16, 17, 100, 1000, 4097])
def test_a_long_curve_has_few_points_that_cover_all_of_it(length: int) -> None:
    points = curve([float(n) for n in range(1, length + 1)]).points()
    assert 4 <= len(points) <= 8
    assert points[-1][0] == length
    assert points[0] == (1, 1.0), "the first value is no mean"
    ends = [x for x, _ in points]
    widths = [b - a for a, b in pairwise(ends)]
    assert set(widths[:-1]) == {widths[0]} and widths[-1] <= widths[0]
    # Of consecutive numbers the mean of a bin is that of its first and its last.
    assert [y for _, y in points[1:]] == [(a + 1 + b) / 2 for a, b in pairwise(ends)]


def test_what_is_not_finite_is_left_out() -> None:
    assert curve([1.0, float("nan"), float("inf"), 2.0]).points() == ((1, 1.0), (4, 2.0))
