import pytest

from pipeline.messages import Beat
from pipeline.watch import Seen
from services.training.ending import hopeless, left


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


def engine(number: int, *, quarantined: str = "", alive: bool = True) -> Seen:
    beat = Beat(service="inference", instance=f"inference-{number}", boot=f"inference-{number}:b")
    return Seen(beat=beat, age_seconds=0.5, quarantined=quarantined, alive=alive)


def test_a_run_whose_engines_are_all_quarantined_has_failed_and_says_whose() -> None:
    wrong = [engine(n, quarantined="version 3 flipped wrong") for n in (0, 1)]
    assert hopeless(wrong) == (
        "failed",
        "every engine is quarantined: inference-0 (version 3 flipped wrong),"
        " inference-1 (version 3 flipped wrong)",
    )


def test_an_engine_that_may_still_sample_is_hope_and_so_is_one_that_may_yet_come() -> None:
    wrong = engine(0, quarantined="version 3 flipped wrong")
    assert hopeless([wrong, engine(1)]) is None
    assert hopeless([]) is None
    assert hopeless([engine(1, alive=False)]) is None
    assert hopeless([wrong, engine(1, alive=False)]) is not None
