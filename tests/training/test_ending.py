import pytest

from services.training.ending import left


@pytest.mark.parametrize(
    ("step", "complete", "drained", "expected"),
    [
        (7, True, False, ("done", "7 steps")),
        (1, True, True, ("done", "1 step")),
        (3, False, True, ("done", "the data ended after 3 steps")),
        (3, False, False, None),
    ],
)
def test_why_a_loop_was_left(
    step: int, complete: bool, drained: bool, expected: tuple[str, str] | None
) -> None:
    assert left(step, complete=complete, drained=drained) == expected
