"""A run on a terminal of any size, and as plain lines where there is none."""

from __future__ import annotations

import io
import re
from itertools import product

import pytest
from msgspec.structs import replace
from rich.console import Console
from up_made import BEATS, LEDGER, RUN, TRAINER, engine, snapshot

from pipeline.ledger import Sum
from pipeline.messages import Beat
from pipeline.watch import Evaluation, Places, Seen, Snapshot, State
from services.view.blocks import bar, curve, sampled
from services.view.panel import Panel, plain
from services.view.picture import render
from services.view.rates import Looks, between
from services.view.scene import Scene
from services.view.sight import Sight
from services.view.words import NO_BREAK

RUNNING = replace(
    snapshot(ledger=LEDGER | {"generated": Sum(30, 1500)}, places=Places(prompts=1, open=2)),
    state=State(step=1, version=1, epoch=1),
    at_seconds=1000.0,
)
PLAIN = Scene("made", RUNNING, steps=2)


def shown(scene: Scene, width: int = 80, height: int | None = 24) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(render(scene, width, height))
    return capture.get().replace(NO_BREAK, " ").splitlines()


def later(seen: Snapshot, seconds: float, **by: float) -> Snapshot:
    """The same run after so many seconds, the counters of every process grown by as much."""
    beats = tuple(replace(one, beat=replace(one.beat, totals=grown(one, by))) for one in seen.beats)
    return replace(seen, beats=beats, at_seconds=seen.at_seconds + seconds)


def grown(one: Seen, by: dict[str, float]) -> dict[str, float]:
    return {name: value + by.get(name, 0.0) for name, value in one.beat.totals.items()}


def full(engines: int = 3) -> Scene:
    """Much to tell: long numbers, many fates, long names, sentences of two lines."""
    fates = {f"fate_{n}": Sum(10**6 - n, 10**8 - n) for n in range(8)}
    busy = {'loop_seconds{activity="busy"}': 7.0, "wall_seconds": 10.0, "tokens": 123456.0}
    seen = replace(
        RUNNING,
        state=State(step=123_456, version=123_456, epoch=12),
        ledger=fates | {"generated": Sum(10**7, 10**9)},
        places=Places(prompts=1_234, open=1_234, groups=1_234),
        window=4_608,
        beats=(
            TRAINER,
            *(
                replace(engine(f"inference-{n}:a", 400.0, 0.002, pid=n), held=1234)
                for n in range(engines)
            ),
            Seen(beat=Beat(service="scoring", instance="scoring-0", boot="s:a"), age_seconds=0.1),
        ),
    )
    sight = Sight("made", 999_999, where="redis://a-rather-long.host.example:6379", hint="q leaves")
    sight.scene(seen)
    scene = sight.scene(later(seen, 10.0, **busy))
    return scene._replace(advice=["one more engine would bring a third more " * 2])


def test_a_frame_of_80_by_24_says_what_matters() -> None:
    lines = shown(PLAIN)
    text = "\n".join(lines)
    assert {len(line) for line in lines} == {80} and len(lines) <= 24
    assert "1 of 2" in text
    assert "0.750 from 0.250" in text
    assert "mean 0.9, max 1 of 1" in text
    assert " 0 █████" in text and " 57%" in text and " 1 ███" in text and " 43%" in text
    assert "3 of 4: 1 in generation, 2 in scoring, 0 ready" in text
    assert "3 members: 2 stale, 1 scorer_error" in text
    assert "1,500 = 700 trained + 500 in flight + 200 zero_signal" in text
    assert "training waits for groups" in text


def test_held_out_points_stand_in_a_line_with_what_is_being_evaluated() -> None:
    points = tuple((15.0 * n, n / 20) for n in range(9))
    told = replace(TRAINER, beat=replace(TRAINER.beat, curves={"held_out": points}))
    standing = Evaluation(version=135, size=40, cursor=40, alive=12)
    seen = replace(RUNNING, beats=(told, *BEATS[1:]), evaluation=standing)
    [line] = [line for line in shown(PLAIN._replace(snapshot=seen)) if "held out" in line]
    assert "held out  0.400 from 0.000 ▁▂▃▄▅▅▆▇█ version 120; 135: 12 of 40 groups left" in line
    first = replace(RUNNING, evaluation=standing)
    [line] = [line for line in shown(PLAIN._replace(snapshot=first)) if "held out" in line]
    assert "held out  version 135: 12 of 40 groups left" in line


@pytest.mark.parametrize("engines", [1, 3, 64])
def test_a_full_frame_of_80_by_24_has_no_clipped_line(engines: int) -> None:
    lines = shown(full(engines))
    assert {len(line) for line in lines} == {80}
    assert len(lines) <= 24
    assert not [line for line in lines if "…" in line]
    assert lines[0].startswith("╭") and lines[-1].startswith("╰")
    inner = [line[2:-2] for line in lines[1:-1]]
    assert all(line.startswith("│ ") and line.endswith(" │") for line in lines[1:-1])
    assert any("123,456 of 999,999" in line for line in inner)
    assert any("1,234 ready" in line for line in inner)


@pytest.mark.parametrize("size", [*product((20, 40, 60, 80, 120, 200), (6, 12, 24, 60))])
def test_no_terminal_is_too_small_or_too_large(size: tuple[int, int]) -> None:
    width, height = size
    lines = shown(full(), width, height)
    assert {len(line) for line in lines} == {width}
    assert len(lines) <= height


def test_a_wider_and_a_higher_terminal_shows_more() -> None:
    small, large = (shown(full(20), *size) for size in ((80, 24), (140, 60)))
    assert "inference (20)" in "".join(small) and "inference-19" not in "".join(small)
    assert "inference-19" in "".join(large)
    assert sum("█" in line for line in large) > sum("█" in line for line in small)


def test_sentences_that_have_no_place_are_counted() -> None:
    advice = [f"sentence {n}" for n in range(30)]
    text = "\n".join(shown(PLAIN._replace(advice=advice)))
    told = sum(f"• sentence {n}" in text.replace("│", "") for n in range(30))
    assert 0 < told < 30
    assert f"and {30 - text.count('• sentence')} sentences more" in text


def test_an_unbalanced_ledger_is_loud() -> None:
    seen = snapshot(ledger=LEDGER | {"late": Sum(1, 5)})
    assert "OFF BALANCE" in "".join(shown(PLAIN._replace(snapshot=seen)))


def test_only_the_last_boot_of_an_instance_is_shown() -> None:
    older = replace(BEATS[1], age_seconds=50.0, alive=False)
    beats = (BEATS[0], older, BEATS[2])
    lines = shown(PLAIN._replace(snapshot=replace(RUNNING, beats=beats)))
    assert sum("inference-0 " in line for line in lines) == 1
    assert "dead" not in "".join(lines)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"alive": False}, "dead"),
        ({"age_seconds": 9.0}, "silent for 9 s"),
        ({"quarantined": "it lied"}, "quarantined: it lied"),
    ],
)
def test_what_is_wrong_with_a_process_stands_in_its_line(
    change: dict[str, object], said: str
) -> None:
    beats = (BEATS[0], replace(BEATS[3], **change))
    lines = shown(PLAIN._replace(snapshot=replace(RUNNING, beats=beats)))
    (line,) = [line for line in lines if "│ inference-1 " in line]
    assert said in line


def test_long_names_and_long_waits_share_the_room() -> None:
    name, wait = "inference@a-host-of-a-long-name-0123456789", "weights that are fresher than these"
    beat = replace(TRAINER.beat, service="inference", instance=name, waiting_for=wait)
    beats = (TRAINER, replace(TRAINER, beat=beat))
    scene = PLAIN._replace(snapshot=replace(RUNNING, beats=beats))
    (small,) = [line for line in shown(scene) if "inference@" in line]
    assert "inference@a-host" in small and "weights that" in small
    (large,) = [line for line in shown(scene, 160) if "inference@" in line]
    assert name in large and wait in large


def test_a_run_without_any_process_or_step_can_be_shown() -> None:
    empty = replace(RUNNING, beats=(), ledger={}, state=State(), places=Places())
    text = "\n".join(shown(Scene("made", empty)))
    assert "no step yet" in text and "no process has started yet" in text


def test_a_run_starts_until_its_first_beat_also_where_the_dead_have_beaten_before() -> None:
    out = io.StringIO()
    panel = Panel(RUN, Console(file=out, width=80, force_terminal=True, color_system=None))
    dead = replace(RUNNING, beats=tuple(replace(seen, alive=False) for seen in BEATS))
    for seen in (replace(RUNNING, beats=()), dead, RUNNING, dead):
        panel.show(seen)
    panel.close()
    titles = re.findall(r"made  (\w+)", out.getvalue())
    assert titles[:4] == ["starting", "starting", "running", "stopped"]
    first = out.getvalue().split("running")[0]
    assert "the processes start" in first and "is alive" not in first


def test_the_figures_of_the_title_are_within_those_of_the_axis() -> None:
    points = [(float(n), 0.5 + n / 1000) for n in range(200)]
    beat = replace(TRAINER.beat, curves={"reward": ((0.0, 0.125), *points[1:])})
    lines = shown(PLAIN._replace(snapshot=replace(RUNNING, beats=(replace(TRAINER, beat=beat),))))
    assert any("0.750 from 0.125" in line for line in lines)
    assert [line for line in lines if "│  0.125 " in line] and "│   0.75 " in "".join(lines)


def test_a_name_is_no_markup() -> None:
    beat = replace(TRAINER.beat, waiting_for="[red]groups[/red]")
    seen = replace(RUNNING, beats=(replace(TRAINER, beat=beat),))
    assert "[red]groups[/red]" in "\n".join(shown(PLAIN._replace(snapshot=seen)))


def test_rates_are_over_the_last_seconds_only() -> None:
    looks = Looks()
    for second in range(40):
        grown = {"generated": Sum(0, 10_000), "trained": Sum(0, 0 if second < 20 else second * 10)}
        seen = replace(RUNNING, ledger=grown, at_seconds=float(second))
        rates = between(looks.add(seen), seen)
    assert rates.trained == 10.0


def test_a_server_that_was_put_back_is_no_negative_rate() -> None:
    back = replace(RUNNING, ledger={"generated": Sum(0, 9)}, at_seconds=RUNNING.at_seconds + 2.0)
    rates = between(RUNNING, back)
    assert (rates.generated, rates.trained) == (0.0, 0.0)


def test_rates_of_a_process_are_from_beat_to_beat() -> None:
    first = replace(RUNNING, beats=(replace(TRAINER, age_seconds=0.9),))
    grown = {"tokens": 0.0, 'loop_seconds{activity="busy"}': 6.0, "wall_seconds": 8.0}
    last = later(first, 8.0, **grown)
    last = replace(last, beats=(replace(last.beats[0], age_seconds=0.1),))
    pace = between(first, last).paces["training-0:a"]
    assert (pace.work, pace.busy) == (0.0, 0.75)
    totals = {"tokens": 88.0}
    (seen,) = last.beats
    told = replace(seen, beat=replace(seen.beat, totals=seen.beat.totals | totals))
    pace = between(first, replace(last, beats=(told,))).paces["training-0:a"]
    assert pace.work == pytest.approx(88.0 / 8.8)
    assert between(first, first).generated is None


def test_a_gap_between_looks_bounds_how_many_are_kept() -> None:
    looks = Looks(300.0, 10.0)
    for second in range(2000):
        oldest = looks.add(replace(RUNNING, at_seconds=float(second)))
    assert 1999 - 310 <= oldest.at_seconds <= 1999 - 290
    back = replace(RUNNING, at_seconds=5.0)
    assert looks.add(back) is back


def test_without_a_terminal_each_step_is_one_line_and_each_event_is_told_once() -> None:
    out = io.StringIO()
    panel = Panel(RUN, Console(file=out, width=100))
    for step in (1, 1, 2):
        seen = replace(RUNNING, state=State(step=step))
        panel.show(seen, events=["scoring-0 exited with 1 [red]"])
    for note in ("evaluating: v0", "evaluating: v0", "evaluating: v2"):
        panel.show(seen, events=["scoring-0 exited with 1 [red]"], note=note)
    panel.close()
    lines = out.getvalue().splitlines()
    assert lines[0] == "scoring-0 exited with 1 [red]"
    assert [line.split(" · ")[0] for line in lines[1:3]] == ["step 1/2", "step 2/2"]
    assert lines[3:] == ["evaluating: v0", "evaluating: v2"]


def test_on_a_terminal_the_panel_is_painted_in_place_and_its_last_picture_stays() -> None:
    out = io.StringIO()
    panel = Panel(RUN, Console(file=out, width=84, height=30, force_terminal=True))
    for step in (1, 2):
        panel.show(replace(RUNNING, state=State(step=step)), note=f"note {step}")
    panel.close()
    _, last = out.getvalue().split("note 1")
    assert "\x1b[2J" not in out.getvalue() and "\x1b[1A" in last
    assert "note 2" in last and last.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_the_trainer_that_beat_last_is_the_one_that_is_shown() -> None:
    gauges = {"reward": 0.125}
    other = replace(TRAINER.beat, instance="training-1", boot="training-1:a", gauges=gauges)
    seen = replace(RUNNING, beats=(TRAINER, replace(TRAINER, beat=other, age_seconds=0.1)))
    assert plain(PLAIN._replace(snapshot=seen)).startswith("step 1/2 · reward 0.125")


def test_a_plain_line_names_the_step_the_reward_and_the_lag() -> None:
    assert plain(PLAIN).startswith("step 1/2 · reward 0.750 · lag 0.9/1")


def test_a_curve_goes_from_its_least_to_its_largest_value() -> None:
    assert curve([0.0, 0.5, 1.0], 1) == ["▁▅█"]
    assert curve([0.0, 0.5, 1.0], 2) == [" ▁█", "▁██"]
    assert curve([], 2) == ["", ""]
    assert curve([0.3, 0.3], 1) == ["▁▁"]


def test_a_curve_of_any_length_fills_its_columns() -> None:
    points = [(float(n), float(n)) for n in range(1000)]
    assert len(sampled(points, 40)) == 40
    assert sampled(points, 2) == [249.5, 749.5]
    assert sampled([(1.0, 5.0), (3.0, 7.0)], 4) == [5.0, 5.0, 5.0, 7.0]
    assert sampled([(1.0, 5.0)], 4) == [5.0]


def test_a_share_is_never_shown_as_nothing() -> None:
    assert (bar(0.0, 8), bar(1e-9, 8), bar(0.5, 8), bar(2.0, 8)) == ("", "▏", "████", "████████")
