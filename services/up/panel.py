"""Shows a run while it goes on: in place on a terminal, as plain lines elsewhere.

What is shown comes from the snapshot and metrics.jsonl alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.constrain import Constrain
from rich.live import Live

from pipeline.run import Run
from pipeline.watch import Snapshot
from services.up.journal import Journal, StepLine
from services.up.picture import lag_figure, render, sentences
from services.up.rates import Meter, Rates
from services.up.words import figure

PLAIN_SECONDS = 5.0
WIDEST = 120


class Panel:
    """Shows one run for as long as it is open."""

    def __init__(self, run: Run, journal: Journal, console: Console | None = None) -> None:
        self._run, self._journal = run, journal
        self._console = console or Console()
        self._meter, self._rates = Meter(), Rates()
        self._seen: Snapshot | None = None
        self._started = time.monotonic()
        self._live = Live(console=self._console, auto_refresh=False)
        self._told_step, self._told_at, self._told_events, self._told_note = -1, 0.0, 0, ""
        if self._console.is_terminal:
            self._live.start()

    def show(self, snapshot: Snapshot, *, events: Sequence[str] = (), note: str = "") -> None:
        """Paints the run as it stands; `note` says what goes on besides."""
        now = time.monotonic()
        if snapshot is not self._seen:  # the last one is shown again while children leave
            self._seen, self._rates = snapshot, self._meter.observe(snapshot, now)
        rates = self._rates
        lines = self._journal.read()
        if self._console.is_terminal:
            view = render(
                self._run,
                snapshot,
                lines,
                rates=rates,
                seconds=now - self._started,
                events=events,
                note=note,
            )
            # Room for the ^C that a terminal writes where the cursor is: it must not wrap.
            width = min(self._console.width - len("^C"), WIDEST)
            self._live.update(Constrain(view, width), refresh=True)
        else:
            self._print(snapshot, lines, rates=rates, events=events, note=note)

    def close(self) -> None:
        """Leaves the last picture where it is."""
        self._live.stop()

    def _print(
        self,
        snapshot: Snapshot,
        lines: Sequence[StepLine],
        *,
        rates: Rates,
        events: Sequence[str],
        note: str,
    ) -> None:
        for event in events[self._told_events :]:
            self._say(event)
        self._told_events = len(events)
        now, step = time.monotonic(), snapshot.state.step
        if note and note != self._told_note:
            self._say(note)
        elif not note and (step != self._told_step or now - self._told_at > PLAIN_SECONDS):
            self._say(plain(self._run, snapshot, lines, rates))
            self._told_step, self._told_at = step, now
        self._told_note = note

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def plain(run: Run, snapshot: Snapshot, lines: Sequence[StepLine], rates: Rates) -> str:
    """The run in one line, for a file or a pipe."""
    last = lines[-1] if lines else StepLine(step=0)
    parts = [f"step {snapshot.state.step}/{run.steps}"]
    if last.reward is not None:
        parts.append(f"reward {last.reward:.3f}")
    parts.append(f"lag {lag_figure(last.lag_mean)}/{lag_figure(last.lag_max)}")
    parts.append(f"tokens/s {figure(rates.generated)} generated {figure(rates.trained)} trained")
    if not lines or not (rates.generated or rates.trained):
        parts += sentences(snapshot)
    return " · ".join(parts)
