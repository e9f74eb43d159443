"""Shows a run while it goes on: in place on a terminal, as plain lines elsewhere. Also for
`sluice top`. What is shown comes from the snapshot and metrics.jsonl alone.
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
        self._meter = Meter()
        self._started = time.monotonic()
        self._live = Live(console=self._console, auto_refresh=False)
        self._printed_step, self._printed_at, self._printed_events = -1, 0.0, 0
        if self._console.is_terminal:
            self._live.start()

    def show(self, snapshot: Snapshot, *, events: Sequence[str] = (), note: str = "") -> None:
        """Paints the run as it stands; `note` says what goes on besides."""
        now = time.monotonic()
        rates = self._meter.observe(snapshot, now)
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
            self._print(snapshot, lines, rates, events)

    def close(self) -> None:
        """Leaves the last picture where it is."""
        self._live.stop()

    def _print(
        self,
        snapshot: Snapshot,
        lines: Sequence[StepLine],
        rates: Rates,
        events: Sequence[str],
    ) -> None:
        for event in events[self._printed_events :]:
            self._console.print(event, markup=False, highlight=False, soft_wrap=True)
        self._printed_events = len(events)
        now = time.monotonic()
        step = snapshot.state.step
        if step != self._printed_step or now - self._printed_at > PLAIN_SECONDS:
            self._printed_step, self._printed_at = step, now
            text = plain(self._run, snapshot, lines, rates)
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def plain(run: Run, snapshot: Snapshot, lines: Sequence[StepLine], rates: Rates) -> str:
    """The run in one line, for a file or a pipe."""
    last = lines[-1] if lines else StepLine(step=0)
    parts = [f"step {snapshot.state.step}/{run.steps}"]
    if last.reward is not None:
        parts.append(f"reward {last.reward:.3f}")
    parts.append(f"lag {lag_figure(last.lag_mean)}/{lag_figure(last.lag_max)}")
    parts.append(f"tokens/s {figure(rates.generated)} generated {figure(rates.trained)} trained")
    if not lines:
        parts += sentences(snapshot)
    return " · ".join(parts)
