"""The window under control: it follows its measure between its bounds, and the bus obeys it."""

from __future__ import annotations

import pytest
from planted import Stream, made_run

from pipeline.run import Control
from services.training.window import Window


def steered(measure: str, values: list[float], *, least: int = 1) -> list[int]:
    """The windows after steps with these values, of at most three steps of eight groups."""
    control = Control(measure=measure, target=0.5, least=least)  # type: ignore[arg-type]
    window, law, out = 24, Window(control, per_step=8, lag_max=2), []
    for value in values:
        window = law.after(window, {measure: value, "finite": True})
        out.append(window)
    return out


@pytest.mark.parametrize(("measure", "bad", "good"), [("ess", 0.1, 0.9), ("mismatch_k3", 0.9, 0.1)])
def test_the_window_shrinks_to_its_least_while_it_misses_and_grows_back_to_its_most(
    measure: str, bad: float, good: float
) -> None:
    assert steered(measure, [bad] * 12)[2:4] == [18, 18]
    windows = steered(measure, [bad] * 20 + [good] * 20)
    assert (windows[19], min(windows), windows[-1], max(windows)) == (8, 8, 24, 24)
    assert min(steered(measure, [bad] * 20, least=2)) == 16


def test_within_the_dead_band_and_where_nothing_is_known_it_stays() -> None:
    assert set(steered("ess", [0.505] * 12)) == {24}
    assert set(steered("ess", [float("nan")] * 12)) == {24}


def test_admission_obeys_the_window_and_a_late_repeat_does_not_move_it(
    server_url: str, run_name: str
) -> None:
    stream = Stream(server_url, made_run(run_name, lag=2))
    groups = stream.bus.groups
    groups.lead(1, "training-0:x")
    for batch, window in ((5, 3), (4, 6)):
        groups.narrow(1, batch=batch, window=window)
    assert stream.bus.snapshot().window == 3
    stream.admit(3)
    with pytest.raises(AssertionError):
        stream.admit(1)
    groups.narrow(1, batch=6, window=1)
    assert stream.bus.snapshot().window == 2, "one step's groups at least"
    groups.narrow(1, batch=7, window=99)
    assert stream.bus.snapshot().window == stream.run.window == 6
    stream.admit(3)
    stream.bus.purge()
    stream.bus.close()
