"""The report's numbers, and that its page stands alone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from up_made import BEATS, LEDGER, LINES, RUN, engine, snapshot, spent

from pipeline.ledger import Sum
from pipeline.run import Bus
from pipeline.watch import Places
from services.up import page, plots, report
from services.up.journal import Journal, StepLine
from services.up.outcome import Outcome
from services.up.series import thin
from services.up.words import NO_BREAK, headline

DONE = Outcome("done")
POINTS = (
    report.Point(version=0, sampled=0.2, sampled_error=0.01, greedy=0.8),
    report.Point(version=2, step=2, seconds=9.0, sampled=0.9, sampled_error=0.02, greedy=0.95),
)


def made(**changes: object) -> report.Report:
    given = {"points": POINTS, "outcome": DONE} | changes
    return report.build(RUN, snapshot(), LINES, **given)  # type: ignore[arg-type]


def test_rates_are_over_the_trainers_wall_time_and_engines_are_summed_over_their_boots() -> None:
    assert made().seconds == 10.0
    assert made().tokens_per_second == {"generated": 100.0, "trained": 70.0}
    assert made().flips == 3


def test_shares_are_seconds_over_the_wall_seconds_of_the_same_processes() -> None:
    told = made()
    assert told.busy_share == {"inference": 18 / 24, "training": 0.7}
    assert told.idle_share == {"inference": 3 / 24, "training": 0.2}
    assert told.other_share == {"inference": 3 / 24, "training": 0.05}


def test_a_gauge_is_the_median_of_the_boots_that_have_it() -> None:
    assert made().decode_step_seconds == 0.004
    assert made().swap_pause_seconds == 0.002
    assert made().random_pause_seconds is None


def test_rewards_and_held_out_points_are_the_first_and_the_last() -> None:
    told = made()
    assert (told.training_reward_first, told.training_reward_last) == (0.25, 0.75)
    assert (told.greedy_first, told.greedy_last) == (0.8, 0.95)
    assert made(points=()).greedy_first is None


def test_lag_is_weighted_by_tokens_and_spanning_by_members() -> None:
    told = made()
    assert told.lag_mean == pytest.approx(600 * 0.9 / 900)
    assert told.lag_max == 1.0
    assert told.share_of_members_spanning_versions == 4 / 16


def test_members_are_counted_by_fate_and_by_reason() -> None:
    assert made().members_trained == 12
    assert made().members_refused == {"scorer_error": 1, "stale": 2}


def test_tokens_refused_of_members_that_were_trained_are_no_refused_members() -> None:
    told = report.build(RUN, snapshot(ledger=LEDGER | {"stale": Sum(0, 60)}), LINES, outcome=DONE)
    assert told.members_refused == {"scorer_error": 1}


def test_a_process_that_was_given_a_new_boot_is_counted_once() -> None:
    """Both boots' beats carry the counters of the one process."""
    former = replace(engine("inference-1:former", 250.0, 0.006, pid=3), age_seconds=20.0)
    reborn = replace(snapshot(), beats=(former, *BEATS))
    told = report.build(RUN, reborn, LINES, outcome=DONE)
    assert told.tokens_per_second["generated"] == 100.0
    assert told.flips == 3


def test_shares_are_known_as_soon_as_a_second_was_measured_and_not_before() -> None:
    beat = replace(BEATS[0].beat, totals=spent(0.1, 0.1, 0.0, 0.2))
    early = replace(snapshot(), beats=(replace(BEATS[0], beat=beat),))
    told = report.build(RUN, early, LINES, outcome=DONE)
    assert told.idle_share == {"inference": None, "training": 0.5}
    beat = replace(BEATS[0].beat, totals=spent(0.0, 0.0, 0.0, 0.0))
    early = replace(snapshot(), beats=(replace(BEATS[0], beat=beat),))
    told = report.build(RUN, early, LINES, outcome=DONE)
    assert told.idle_share == {"inference": None, "training": None}


def test_a_run_that_was_stopped_says_so_and_what_it_did() -> None:
    stopped = Outcome("stopped", "stopped by SIGINT")
    early = report.build(RUN, snapshot(), (), outcome=stopped)
    assert headline(early) == "made was stopped by SIGINT before its first step."
    assert headline(made(outcome=stopped)).startswith(
        "made (stopped by SIGINT): training reward 0.25"
    )


@pytest.mark.parametrize(
    ("extra", "alive", "balanced"),
    [(0, 0, True), (1, 0, False), (-1, 0, False), (1, 1, True), (-1, 1, False)],
)
def test_tokens_without_a_fate_need_a_group_that_is_alive(
    extra: int, alive: int, balanced: bool
) -> None:
    ledger = LEDGER | {"generated": Sum(20, 1000 + extra)}
    seen = snapshot(ledger=ledger, places=Places(open=alive))
    told = report.build(RUN, seen, LINES, outcome=DONE)
    assert (told.balanced, told.in_flight_tokens) == (balanced, extra)


def test_a_run_without_a_step_can_be_reported() -> None:
    told = report.build(RUN, snapshot(), (), outcome=Outcome("failed", "it <broke>"))
    assert told.reward_first is None
    assert "it &lt;broke&gt;" in page.render(told)


def test_the_headline_says_what_was_learned_how_long_it_took_and_what_went_wrong() -> None:
    assert headline(made()).replace(NO_BREAK, " ") == (
        "made: training reward 0.25 → 0.75 in 2 steps and 10.0 s; "
        "held out: sampled 0.2 → 0.9, greedy 0.8 → 0.95."
    )
    failed = made(outcome=Outcome("failed", "training-0 exited with 1: it broke"))
    assert headline(failed) == "made failed after 2 steps: training-0 exited with 1: it broke"


def test_skipped_steps_are_in_the_headline() -> None:
    beat = replace(BEATS[0].beat, totals=BEATS[0].beat.totals | {"skipped_steps": 2.0})
    seen = replace(snapshot(), beats=(replace(BEATS[0], beat=beat), *BEATS[1:]))
    told = report.build(RUN, seen, LINES, outcome=DONE)
    assert headline(told).endswith("; 2 steps were skipped: gradient not finite.")
    assert "skipped" not in headline(made())


def test_a_run_that_is_over_without_a_step_says_why() -> None:
    ledger = {"generated": Sum(24, 9), "zero_signal": Sum(8, 3), "stale": Sum(16, 6)}
    told = report.build(RUN, snapshot(ledger=ledger), (), outcome=Outcome("done", "no more"))
    assert headline(told) == (
        "made is done without a step: no more; "
        "16 of 24 members were stale, 8 of 24 members were zero_signal."
    )


def test_a_password_does_not_leave_the_run() -> None:
    run = replace(RUN, bus=Bus(url="redis://me:secret@host:6379/0"))
    told = report.build(run, snapshot(), LINES, outcome=DONE)
    assert told.config["bus"]["url"] == "redis://me:***@host:6379/0"
    assert "secret" not in page.render(told)


def test_many_steps_become_few_points_and_keep_their_extremes() -> None:
    lines = [StepLine(step=n, seconds=n, tokens=2, reward=n % 2, lag_max=n) for n in range(1, 1001)]
    series = thin(lines, 100)
    assert len(series.step) == 100
    assert series.step[-1] == series.seconds[-1] == series.lag_max[-1] == 1000
    assert series.reward == [0.5] * 100
    assert series.tokens_per_second == [2.0] * 100


def test_the_page_is_drawn_from_report_json_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, LINES)) + b"\n")
    (tmp_path / "evaluation.json").write_bytes(msgspec.json.encode({"points": POINTS}))
    wrote = report.write(tmp_path, RUN, snapshot(), outcome=DONE, started="now", restarts={"x": 1})
    assert wrote == made(started="now", restarts={"x": 1})
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "evaluation.json").unlink()
    assert page.draw(tmp_path).read_text() == page.render(wrote)
    assert json.loads((tmp_path / "report.json").read_text())["members_trained"] == 12


class Tags(HTMLParser):
    """Tags that are open, and every attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_fetches_nothing_runs_nothing_and_closes_its_tags() -> None:
    text = page.render(made())
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not tags.seen & {"script", "link", "img", "iframe", "object", "use", "image"}
    assert not tags.attributes & {"src", "href", "onclick", "onload"}
    assert not re.search(r"https?://|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text
    assert "Balanced" in text


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0, 13.2), (0, 40), (0, 0), (-0.3, 0.9), (0, 7e5)]
)
def test_ticks_are_few_even_and_enclose(low: float, high: float) -> None:
    ticks = plots.ticks(low, high)
    gaps = [b - a for a, b in pairwise(ticks)]
    assert 2 <= len(ticks) <= 8
    assert ticks[0] <= low <= high <= ticks[-1]
    assert gaps == pytest.approx([gaps[0]] * len(gaps))


def test_a_line_that_is_still_being_written_is_read_once_it_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    journal = Journal(path)
    assert journal.read() == []
    path.write_text('{"step": 1, "unknown": 7, "tokens": 40.0}\nnot json\n{"st')
    assert [line.step for line in journal.read()] == [1]
    assert "unreadable line" in caplog.text
    with path.open("a") as file:
        file.write('ep": 2, "reward": null}\n')
    assert [line.step for line in journal.read()] == [1, 2]
