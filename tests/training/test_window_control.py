"""The window under control: it follows its measure between its bounds, and the bus obeys it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from planted import Lead, Stream, Trainer, made_run, put_back, saved, wait_until

from pipeline.run import Control, Lag, Run
from pipeline.run import Training as Keys
from pipeline.serve import EXIT_DONE
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
    assert steered(measure, [bad] * 8) == [24, 24, 18, 18, 18, 13, 13, 9]
    windows = steered(measure, [bad] * 20 + [good] * 20)
    assert (windows[19], min(windows), windows[-1], max(windows)) == (8, 8, 24, 24)
    assert min(steered(measure, [bad] * 20, least=2)) == 16


def test_within_the_dead_band_and_where_nothing_is_known_it_stays() -> None:
    assert set(steered("ess", [0.505] * 12)) == {24}
    assert set(steered("ess", [float("nan")] * 12)) == {24}
    law = Window(Control(target=0.5), per_step=8, lag_max=2)
    skipped = {"ess": 0.1, "finite": False}
    assert {law.after(24, skipped) for _ in range(12)} == {24}


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


@pytest.fixture
def run(run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Its target is whole agreement, which the planted log-probs never show: of 6 groups, 4 after
    the third step, 3 after the fifth.
    """
    monkeypatch.chdir(tmp_path)
    lag = Lag(max=2, control=Control(target=1.0))
    weights = {"use": "shm", "folder": str(tmp_path)}
    return made_run(run_name, steps=9, lag=lag, weights=weights, training=Keys(checkpoint_every=9))


def led(stream: Stream, lead: Lead) -> Trainer:
    """A trainer whose first version is known."""
    trainer = lead()
    wait_until(lambda: stream.bus.state().version == trainer.service.version, "version")
    return trainer


def steps(stream: Stream, trainer: Trainer, *windows: int) -> None:
    """As many steps, each with its window on the bus and in the trainer afterwards."""
    for window in windows:
        state = stream.bus.state()
        stream.serve(state.version)
        stream.plant(2)
        wait_until(lambda step=state.step + 1: stream.bus.versions.newest().step == step, "step")
        wait_until(lambda n=window: stream.bus.snapshot().window == n, f"window {window}")
        assert trainer.service.window == window


def test_a_window_that_was_narrowed_survives_its_trainer(stream: Stream, lead: Lead) -> None:
    first = led(stream, lead)
    steps(stream, first, 6, 6, 4)
    assert first.stop() == EXIT_DONE
    second = led(stream, lead)
    assert second.service.window == stream.bus.snapshot().window == 4
    steps(stream, second, 4, 3)


def test_a_server_that_was_put_back_hears_the_window_with_the_next_step(
    stream: Stream, lead: Lead
) -> None:
    trainer = led(stream, lead)
    steps(stream, trainer, 6)
    before = saved(stream.bus)
    steps(stream, trainer, 6, 4)
    put_back(stream.bus, before)
    wait_until(lambda: stream.bus.state().version == 3, "telling")
    assert stream.bus.snapshot().window == 6, "of the older state"
    stream._held.clear()
    stream.admit(4)  # the cursor went back as well: what was trained is not admitted again
    steps(stream, trainer, 4)


def test_a_run_that_nothing_steers_any_more_has_its_whole_window_again(
    server_url: str, stream: Stream, run: Run
) -> None:
    stream.bus.groups.lead(1, "training-0:x")
    stream.bus.groups.narrow(1, batch=0, window=3)
    trainer = Trainer(server_url, replace(run, lag=Lag(max=2)))
    assert trainer.service.window == stream.bus.snapshot().window == 6
    trainer.bus.close()
