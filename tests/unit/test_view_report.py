"""The report's numbers, and that its page stands alone."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from up_made import BEATS, LEDGER, LINES, RUN, TRAINER, engine, snapshot, spent

from pipeline.ledger import Sum
from pipeline.run import Bus, Model
from pipeline.watch import Places, State, explain
from services.view import page, plots, report
from services.view.build import Source, build
from services.view.headline import headline, summary
from services.view.journal import StepLine, read_steps
from services.view.outcome import Outcome
from services.view.series import thin
from services.view.words import NO_BREAK
from services.view.writing import gather, write

DONE = Outcome("done")
POINTS = (
    report.Point(version=0, sampled=0.2, sampled_error=0.01, greedy=0.8),
    report.Point(version=2, step=2, seconds=9.0, sampled=0.9, sampled_error=0.02, greedy=0.95),
)


def made(**changes: object) -> report.Report:
    """The report of the made-up run, of which something is different."""
    given = {
        "name": RUN.name,
        "run": RUN,
        "snapshot": snapshot(),
        "lines": LINES,
        "points": POINTS,
        "outcome": DONE,
        "restarts": {},
    }
    return build(Source(**given | changes))  # type: ignore[arg-type]


def test_rates_are_over_the_trainers_wall_time_and_engines_are_summed_over_their_boots() -> None:
    assert made().seconds == 10.0
    assert made().tokens_per_second == {"generated": 100.0, "trained": 70.0}
    assert made().flips == 3


def test_the_time_of_trainers_that_are_long_dead_is_in_the_folder() -> None:
    lines = (LINES[0], replace(LINES[1], seconds=100.0))
    assert made(lines=lines).seconds == 100.0
    assert made(lines=lines).tokens_per_second == {"generated": 10.0, "trained": 7.0}


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
    told = made(snapshot=snapshot(ledger=LEDGER | {"stale": Sum(0, 60)}))
    assert told.members_refused == {"scorer_error": 1}


def test_a_process_that_was_given_a_new_boot_is_counted_once() -> None:
    """Both boots' beats carry the counters of the one process."""
    former = replace(engine("inference-1:former", 250.0, 0.006, pid=3), age_seconds=20.0)
    reborn = replace(snapshot(), beats=(former, *BEATS))
    told = made(snapshot=reborn)
    assert told.tokens_per_second["generated"] == 100.0
    assert told.flips == 3


def test_shares_are_known_as_soon_as_a_second_was_measured_and_not_before() -> None:
    beat = replace(BEATS[0].beat, totals=spent(0.1, 0.1, 0.0, 0.2))
    early = replace(snapshot(), beats=(replace(BEATS[0], beat=beat),))
    told = made(snapshot=early)
    assert told.idle_share == {"inference": None, "training": 0.5}
    beat = replace(BEATS[0].beat, totals=spent(0.0, 0.0, 0.0, 0.0))
    early = replace(snapshot(), beats=(replace(BEATS[0], beat=beat),))
    told = made(snapshot=early)
    assert told.idle_share == {"inference": None, "training": None}


def test_a_run_that_was_stopped_says_so_and_what_it_did() -> None:
    stopped = Outcome("stopped", "stopped by SIGINT")
    early = made(lines=(), points=(), outcome=stopped)
    assert headline(early) == "made (stopped by SIGINT): no step yet."
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
    told = made(snapshot=seen, points=())
    assert (told.balanced, told.in_flight_tokens) == (balanced, extra)


def test_who_is_trained_least_is_told_by_task_and_by_length_as_the_last_step_left_it() -> None:
    shares = {"task": 0.41, "length": 0.934}
    names = {"task": "<slow>", "length": "1024"}
    last = replace(LINES[-1], least_share=shares, least_shared=names)
    told = made(lines=(LINES[0], last))
    assert [(one.by, one.share) for one in told.least_shares] == [*shares.items()]
    html = page.render(told)
    rows = re.findall(r"<tr><td>([^<]*)</td>.*?<td class=\"n\">([^<]*)</td></tr>", html)
    assert ("task &lt;slow&gt;", "41.0%") in rows and ("length up to 1,024", "93.4%") in rows
    unknown = replace(
        last, least_share={"task": None, "length": 0.5}, least_shared={"length": "more"}
    )
    html = page.render(made(lines=(last, unknown)))
    assert "length more" in html and "&lt;slow&gt;" not in html
    assert "Who is trained least" not in page.render(made(lines=(last, LINES[-1])))


def test_a_run_without_a_step_can_be_reported() -> None:
    told = made(lines=(), points=(), outcome=Outcome("failed", "it <broke>"))
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
    told = made(snapshot=seen, points=())
    assert headline(told).endswith("; 2 steps were skipped: no usable gradient.")
    assert "skipped" not in headline(made())


def test_a_run_that_is_over_without_a_step_says_why() -> None:
    ledger = {"generated": Sum(24, 9), "zero_signal": Sum(8, 3), "stale": Sum(16, 6)}
    told = made(
        snapshot=snapshot(ledger=ledger), lines=(), points=(), outcome=Outcome("done", "no more")
    )
    assert headline(told) == (
        "made is done without a step: no more; "
        "16 of 24 members were stale, 8 of 24 members were zero_signal."
    )


def test_a_password_does_not_leave_the_run() -> None:
    run = replace(RUN, bus=Bus(url="redis://me:secret@host:6379/0"))
    told = made(run=run)
    assert told.config["bus"]["url"] == "redis://me:***@host:6379/0"
    assert "secret" not in page.render(told)


def test_what_a_skipped_step_consumed_was_not_trained() -> None:
    skipped = replace(LINES[1], step=1, seconds=6.0, finite=False)
    told = made(snapshot=None, lines=(LINES[0], skipped, LINES[1]), restarts=None)
    assert (told.members_trained, told.skipped_steps) == (16, 1)
    assert told.tokens_per_second["trained"] == 900 / 9
    assert told.series.tokens_per_second == [75.0, 0.0, 200.0]
    assert told.lag_tokens == {"0": 360, "1": 540}


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
    source = gather(tmp_path, RUN, snapshot(), outcome=DONE, started="now", restarts={"x": 1})
    wrote, path = write(source, tmp_path)
    assert replace(wrote, made="") == replace(made(started="now", restarts={"x": 1}), made="")
    (tmp_path / "metrics.jsonl").unlink()
    for broken in (b"{", b"[]", b'{"points": 3}', b"{}"):
        (tmp_path / "evaluation.json").write_bytes(broken)
        assert report.read_points(tmp_path / "evaluation.json") == []
    (tmp_path / "evaluation.json").unlink()
    path.unlink()
    assert page.draw(tmp_path) == path
    assert path.read_text() == page.render(wrote)
    assert json.loads((tmp_path / "report.json").read_text())["members_trained"] == 12


def test_tokens_are_counted_by_lag_and_without_the_folder_the_trainer_tells_them() -> None:
    assert made().lag_tokens == {"0": 360, "1": 540}
    assert made(lines=()).lag_tokens == {"0": 400, "1": 300}
    assert "<td>lag 1</td>" in page.render(made())


def test_the_throughput_of_both_sides_is_from_step_to_step() -> None:
    series = made().series
    assert series.generated_per_second == [100.0, 120.0]
    assert series.tokens_per_second == [75.0, 120.0]


def test_a_step_that_was_replayed_leaves_a_gap_in_what_was_generated() -> None:
    lines = (LINES[0], replace(LINES[0], step=2, seconds=5.0, generated_tokens=None), LINES[1])
    assert thin(lines).generated_per_second == [100.0, None, None]


def test_the_gap_between_the_two_sides_is_weighted_by_tokens() -> None:
    told = made()
    assert told.mismatch_k3 == pytest.approx((300 * 0.001 + 600 * 0.004) / 900)
    assert told.ess == pytest.approx((300 * 1.0 + 600 * 0.7) / 900)


def test_the_gap_is_told_by_its_causes_and_the_canarys_is_the_largest_of_all_engines() -> None:
    gap = 'canary_gap_nats{of="largest"}'
    engines = [
        engine(f"inference-{number}:a", 1.0, 0.1, pid=number, **{gap: value})
        for number, value in enumerate((2e-6, 3e-4, float("nan")))
    ]
    told = made(snapshot=replace(snapshot(), beats=(TRAINER, *engines)))
    assert told.engine_k3 == pytest.approx((300 * 0.001 + 600 * 0.0025) / 900)
    assert told.drift_k3 == pytest.approx(0.003) and told.canary_gap_nats == 3e-4
    by_causes = (
        "By its causes: 2 the engines, 3 the policy's drift. The canary's gap is 0.0003 nats."
    )
    assert by_causes in unescape(page.render(told))
    assert made().canary_gap_nats is None and "canary's" not in unescape(page.render(made()))


def test_idle_seconds_are_told_by_what_was_waited_for() -> None:
    told = made()
    causes = {"groups": 1.5, "older groups to be done": 0.5}
    assert told.idle_seconds == {"inference": {}, "training": causes}
    text = page.render(told)
    assert "<title>idle for groups: 15.0%</title>" in text
    assert "<title>idle for older groups to be done: 5.0%</title>" in text
    rare = page.render(replace(told, idle_seconds={"training": {"groups": 999.0, "luck": 1.0}}))
    assert "idle for groups" in rare and "luck" not in rare


def test_a_run_in_flight_says_who_waits_for_whom() -> None:
    seen = replace(snapshot(), state=State(step=2, version=2))
    told = made(snapshot=seen, outcome=Outcome("running"))
    assert told.now == explain(seen) != []
    text = page.render(told)
    assert "What goes on" in text and '<span class="state running">running</span>' in text
    assert headline(told).startswith("made (running): training reward 0.25")
    assert made().now == [] and "What goes on" not in page.render(made())


def test_who_was_started_again_is_told_by_who_starts_or_else_by_the_beats() -> None:
    assert made(restarts={"x": 2}).restarts == {"x": 2}
    assert made(restarts=None).restarts == {"inference-0": 1}


def test_without_its_server_a_run_is_what_its_folder_knows() -> None:
    unknown = Outcome("unknown", "as far as its folder knows")
    told = made(snapshot=None, outcome=unknown, restarts=None)
    assert (told.steps, told.seconds) == (2, 9.0)
    assert (told.members_trained, told.members_refused) == (16, {"stale": 2})
    assert told.tokens_per_second == {"generated": None, "trained": 100.0}
    text = page.render(told)
    assert "no server could be reached" in text and "alanced" not in text
    assert "started again" not in text
    assert summary(told)[-1].endswith("ledger out of reach")
    empty = made(snapshot=None, outcome=unknown, lines=(), points=())
    assert headline(empty) == "made: no step, as far as its folder knows."


def test_a_report_from_afar_has_steps_for_seconds_and_no_configuration() -> None:
    steps = tuple(StepLine(step=n, reward=n / 10) for n in (1, 2, 3))
    text = page.render(made(run=None, lines=steps, points=()))
    assert ">step</text>" in text
    assert "Configuration" not in text
    assert "Lag by step" not in text, "nobody told it"


def test_a_long_run_is_told_in_a_unit_that_suits_it() -> None:
    for seconds, unit in ((599.0, "seconds"), (600.0, "minutes"), (36_000.0, "hours")):
        lines = (LINES[0], replace(LINES[1], seconds=seconds))
        text = page.render(made(lines=lines, points=()))
        assert f">{unit}</text>" in text and ">36k</text>" not in text


def test_it_began_when_the_first_step_says() -> None:
    lines = (replace(LINES[0], time=1_800_000_004.0), LINES[1])
    assert made(lines=lines, started="later").started == "2027-01-15 08:00:00 UTC"
    assert made(started="now").started == "now"


def test_whatever_a_value_is_it_is_no_markup() -> None:
    bad = "<script>alert(1)</script>"
    fates = LEDGER | {bad: Sum(1, 0)}
    beat = replace(
        BEATS[0].beat, waiting_for=bad, totals=BEATS[0].beat.totals | {_caused(bad): 3.0}
    )
    seen = replace(
        snapshot(ledger=fates),
        state=State(step=2, version=2),
        beats=(replace(BEATS[0], beat=beat, quarantined=bad), *BEATS[1:]),
    )
    run = replace(RUN, model=Model(path=bad), data={"use": "jsonl", "path": bad})
    told = made(
        snapshot=seen, run=run, outcome=Outcome("running", bad), started=bad, restarts={bad: 1}
    )
    told = replace(told, advice=[bad], machine={bad: bad}, lag_tokens={bad: 1})
    text = page.render(told)
    assert text.count("alert(1)") >= 10
    assert "<script" not in text


def _caused(cause: str) -> str:
    return f'idle_seconds{{cause="{cause}"}}'


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
    assert read_steps(path) == []
    path.write_text('{"step": 1, "unknown": 7, "tokens": 40.0}\nnot json\n{"st')
    assert [line.step for line in read_steps(path)] == [1]
    assert "unreadable line" in caplog.text
    with path.open("a") as file:
        file.write('ep": 2, "reward": null}\n')
    assert [line.step for line in read_steps(path)] == [1, 2]
