from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import Span
from pipeline.versions import Freshness, Stretch, Unit, judge, mask_out

STEPS = {version: version for version in range(7)}
AT_FIVE = Freshness(step=5, steps=STEPS, lag_max=2, unit="sample")


def spans(*versions_and_tokens: tuple[int, int]) -> tuple[Span, ...]:
    return tuple(Span(version, tokens, "boot") for version, tokens in versions_and_tokens)


def reasons(stretches: tuple[Stretch, ...]) -> list[str | None]:
    return [one.reason for one in stretches]


@pytest.mark.parametrize("unit", get_args(Unit))
def test_C032_the_boundary_of_lag_and_versions_from_the_future(unit: Unit) -> None:
    rules = AT_FIVE._replace(unit=unit)
    judged = [reasons(judge(spans((version, 1)), rules))[0] for version in (2, 3, 4, 5, 6)]
    assert judged == ["stale", None, None, None, "future_version"]


def test_at_lag_max_0_only_the_trainers_own_step_is_fresh() -> None:
    rules = AT_FIVE._replace(lag_max=0)
    judged = [reasons(judge(spans((version, 1)), rules))[0] for version in (4, 5, 6)]
    assert judged == ["stale", None, "future_version"]


def test_lag_is_counted_in_steps_and_not_in_versions() -> None:
    rules = AT_FIVE._replace(steps={90: 4, 12: 1})
    assert [one.lag for one in judge(spans((90, 2), (12, 1)), rules)] == [1, 4]


def test_C030_with_unit_sample_the_oldest_token_decides() -> None:
    rules = AT_FIVE._replace(lag_max=1)
    assert reasons(judge(spans((3, 1), (4, 9)), rules)) == ["stale", "stale"]


def test_with_unit_token_just_the_stale_tokens_are_refused() -> None:
    stretches = judge(spans((2, 3), (4, 2), (5, 1)), AT_FIVE._replace(unit="token"))
    assert stretches == (Stretch(0, 3, 3, "stale"), Stretch(3, 5, 1, None), Stretch(5, 6, 0, None))


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        (((2, 1), (4, 2), (5, 0)), None),  # lags 3, 1, 1: 5/3
        (((2, 2), (4, 2)), None),  # lags 3, 3, 1, 1: just 2
        (((2, 3), (4, 2)), "stale"),  # 11/5
    ],
)
def test_with_unit_mean_the_mean_lag_of_all_tokens_decides(
    pairs: tuple[tuple[int, int], ...], reason: str | None
) -> None:
    told = judge(spans(*pairs), AT_FIVE._replace(unit="mean"))
    assert reasons(told) == [reason] * 2


@pytest.mark.parametrize("unit", get_args(Unit))
@pytest.mark.parametrize(
    ("other", "reason"), [(6, "future_version"), (99, "orphan_version"), (-1, "orphan_version")]
)
def test_a_future_or_orphaned_token_refuses_its_whole_member(
    unit: Unit, other: int, reason: str
) -> None:
    stretches = judge(spans((2, 1), (5, 1), (other, 1)), AT_FIVE._replace(unit=unit))
    assert reasons(stretches) == [reason] * 3


def test_a_span_without_tokens_decides_nothing() -> None:
    assert judge(spans((0, 0), (5, 2)), AT_FIVE) == (Stretch(0, 2, 0, None),)


def test_masks_split_what_is_kept_and_nothing_else() -> None:
    kept, refused = Stretch(0, 6, 0, None), Stretch(6, 9, 5, "stale")
    assert mask_out((kept, refused), ((4, 8), (1, 2), (1, 3))) == (
        Stretch(0, 1, 0, None),
        Stretch(1, 2, 0, "masked"),
        Stretch(2, 3, 0, "masked"),
        Stretch(3, 4, 0, None),
        Stretch(4, 6, 0, "masked"),
        refused,
    )


@given(
    pairs=st.lists(st.tuples(st.integers(-1, 8), st.integers(0, 5)), max_size=6),
    masks=st.lists(st.tuples(st.integers(-2, 30), st.integers(-2, 30)), max_size=4),
    unit=st.sampled_from(get_args(Unit)),
    lag_max=st.integers(0, 4),
)
def test_stretches_cover_each_token_once_and_keep_none_that_is_too_old(
    pairs: list[tuple[int, int]], masks: list[tuple[int, int]], unit: Unit, lag_max: int
) -> None:
    rules = AT_FIVE._replace(unit=unit, lag_max=lag_max)
    stretches = mask_out(judge(spans(*pairs), rules), masks)
    covered = [token for one in stretches for token in range(one.start, one.stop)]
    assert covered == list(range(sum(tokens for _, tokens in pairs)))
    for one in stretches:
        if one.reason is None:
            assert one.lag is not None and one.lag >= 0
            assert unit == "mean" or one.lag <= lag_max
            assert not any(set(range(*mask)) & set(range(one.start, one.stop)) for mask in masks)
