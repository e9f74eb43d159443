"""The panel at 100 columns, and the plain lines where there is no terminal."""

from __future__ import annotations

import io
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console
from up_made import BEATS, LEDGER, LINES, RUN, snapshot

from pipeline.ledger import Sum
from pipeline.watch import Places, Snapshot, State
from services.up.journal import Journal
from services.up.panel import Panel, plain
from services.up.picture import render, sparkline
from services.up.rates import Meter

RUNNING = replace(
    snapshot(ledger=LEDGER | {"generated": Sum(30, 1500)}, places=Places(prompts=1, open=2)),
    state=State(step=1, version=1, epoch=1),
)


def shown(seen: Snapshot, width: int = 100) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(render(RUN, seen, LINES, rates=Meter().observe(seen, 0.0)))
    return capture.get().splitlines()


def test_the_panel_fits_in_100_columns_and_says_what_matters() -> None:
    lines = shown(RUNNING)
    text = " ".join(lines)
    assert {len(line) for line in lines} == {100}
    assert "1 of 2" in text
    assert "0.750 from 0.250" in text
    assert "mean 0.9   max 1 of 1" in text
    assert "prompts 1   open 2   groups 0   3 of 4 alive" in text
    assert "scorer_error 1   stale 2" in text
    assert "balanced  1,500 generated = 700 trained + 200 zero_signal + 50 stale" in text
    assert "500 in flight" in text
    assert "training waits for groups" in text


def test_an_unbalanced_ledger_is_loud() -> None:
    assert "OFF BALANCE" in " ".join(shown(snapshot(ledger=LEDGER | {"late": Sum(1, 5)})))


def test_only_the_last_boot_of_an_instance_is_shown() -> None:
    older = replace(BEATS[1], age_seconds=50.0, alive=False)
    text = "\n".join(shown(replace(RUNNING, beats=(BEATS[0], older, BEATS[2]))))
    assert sum("inference-0 " in line for line in text.splitlines()) == 1
    assert "dead" not in text


def test_rates_are_over_the_last_seconds_only() -> None:
    meter = Meter()
    later = RUNNING
    for second in range(40):
        grown = {"generated": Sum(0, 10_000), "trained": Sum(0, 0 if second < 20 else second * 10)}
        later = replace(RUNNING, ledger=grown)
        rates = meter.observe(later, float(second))
    assert rates.trained == 10.0


def test_without_a_terminal_each_step_is_one_line_and_each_event_is_told_once(
    tmp_path: Path,
) -> None:
    out = io.StringIO()
    panel = Panel(RUN, Journal(tmp_path / "none"), Console(file=out, width=100))
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


def test_a_plain_line_names_the_step_the_reward_and_the_lag() -> None:
    rates = Meter().observe(RUNNING, 0.0)
    assert plain(RUN, RUNNING, LINES, rates).startswith("step 1/2 · reward 0.750 · lag 0.9/1")


def test_a_sparkline_has_the_ends_of_its_values_and_never_outgrows_its_place() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([]) == ""
    assert sparkline([0.3, 0.3]) == "▁▁"
    assert len(sparkline([float(n) for n in range(1000)], width=40)) == 40
