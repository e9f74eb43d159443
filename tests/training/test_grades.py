"""avg@k and pass@k, against every way there is to draw k of n."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest

from pipeline import grades
from pipeline.grades import KeptVersion, Point, pass_at, summary


def point(version: int, sampled: list[list[float | None]]) -> Point:
    kept = KeptVersion(version=version, step=version, seconds=0.0, path="")
    members = len(sampled[0])
    return summary(kept, sampled, [[1.0]] * len(sampled), members=members)


@pytest.mark.parametrize("members", range(1, 9))
def test_pass_at_k_is_the_share_of_all_draws_that_have_one_right(members: int) -> None:
    for right in range(members + 1):
        drawn = [1] * right + [0] * (members - right)
        for k in range(1, members + 1):
            shares = [max(draw) for draw in combinations(drawn, k)]
            assert pass_at(k, members=members, right=right) == pytest.approx(fmean(shares))


def test_it_is_told_for_powers_of_two_and_for_all_members() -> None:
    made = point(0, [[1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0] * 6])
    assert made.pass_at == pytest.approx({1: 1 / 12, 2: 1 / 6, 4: 1 / 3, 6: 1 / 2})
    assert made.sampled == pytest.approx(1 / 12), "avg@6 is pass@1"
    assert made.passed == 0.5 and "pass@6 0.500" in made.sentence()


def test_an_answer_without_a_verdict_lowers_n_and_is_no_wrong_one() -> None:
    made = point(0, [[1.0, None, 0.0, None], [0.0, 0.0, 1.0, 1.0]])
    assert made.errors == 2 and made.sampled == 0.5
    assert made.pass_at[2] == pytest.approx((1 + (1 - 1 / 6)) / 2)
    assert made.pass_at[4] == 1.0, "of the one prompt that has four verdicts"


def test_the_best_version_is_the_first_of_the_best(tmp_path: Path) -> None:
    rows = {0: [[0.0, 0.0]], 10: [[1.0, 1.0]], 20: [[1.0, 1.0]], 30: [[1.0, 0.0]]}
    grades.write(tmp_path, [point(version, row) for version, row in reversed(rows.items())])
    read = grades.read(tmp_path)
    assert [p.version for p in read.points] == [0, 10, 20, 30] and read.best == 10
