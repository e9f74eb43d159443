import pytest

from pipeline.errors import WeightsError
from services.training.ending import crashed, left


@pytest.mark.parametrize(
    ("step", "complete", "drained", "expected"),
    [
        (7, True, False, ("done", "7 steps")),
        (1, True, True, ("done", "1 step")),
        (3, False, True, ("done", "the data ended after 3 steps")),
        (3, False, False, ("failed", "training was stopped by SIGTERM at step 3")),
    ],
)
def test_why_a_loop_was_left(
    step: int, complete: bool, drained: bool, expected: tuple[str, str]
) -> None:
    assert left(step, complete=complete, drained=drained, signal="SIGTERM") == expected


@pytest.mark.parametrize(
    ("exc", "said"),
    [
        (WeightsError("version 2 cannot be written"), "version 2 cannot be written"),
        (ValueError("bad\nin detail"), "ValueError: bad"),
        (ZeroDivisionError(), "ZeroDivisionError: no reason given"),
    ],
)
def test_a_crash_is_one_line_with_its_reason(exc: Exception, said: str) -> None:
    assert crashed(4, exc) == ("failed", f"training failed at step 4: {said}")
