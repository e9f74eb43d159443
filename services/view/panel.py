"""Shows a run while it goes on: in place on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live

from pipeline.run import Run
from pipeline.watch import Snapshot, present
from services.view.picture import render
from services.view.scene import Scene, gauge
from services.view.sight import Sight
from services.view.words import figure, lag_figure

PLAIN_SECONDS = 5.0
WIDEST = 160


class Panel:
    """Shows one run for as long as it is open."""

    def __init__(self, run: Run, console: Console | None = None) -> None:
        self._sight = Sight(run.name, run.steps)
        self._console = console or Console()
        self._scene: Scene | None = None
        self._starting = True
        self._live = Live(console=self._console, auto_refresh=False)
        self._told_step, self._told_at, self._told_events, self._told_note = -1, 0.0, 0, ""
        if self._console.is_terminal:
            self._live.start()

    def show(self, snapshot: Snapshot, *, events: Sequence[str] = (), note: str = "") -> None:
        """Paints the run as it stands; `note` says what goes on besides."""
        if self._scene is None or snapshot is not self._scene.snapshot:
            # The last one is shown again and again while children leave.
            self._starting = self._starting and not _lives(snapshot)
            self._scene = self._sight.scene(snapshot)._replace(starting=self._starting)
        scene = self._scene._replace(events=events, note=note)
        if self._console.is_terminal:
            # Room for the ^C that a terminal writes where the cursor is: it must not wrap.
            width = min(self._console.width - len("^C"), WIDEST)
            self._live.update(render(scene, width, self._console.height - 1), refresh=True)
        else:
            self._print(scene)

    def close(self) -> None:
        """Leaves the last picture where it is."""
        self._live.stop()

    def _print(self, scene: Scene) -> None:
        for event in scene.events[self._told_events :]:
            self._say(event)
        self._told_events = len(scene.events)
        now, step, note = time.monotonic(), scene.snapshot.state.step, scene.note
        if note and note != self._told_note:
            self._say(note)
        elif not note and (step != self._told_step or now - self._told_at > PLAIN_SECONDS):
            self._say(plain(scene))
            self._told_step, self._told_at = step, now
        self._told_note = note

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _lives(snapshot: Snapshot) -> bool:
    """Whether anybody has beaten by now, or the run is over: the dead of a former start do not."""
    return bool(snapshot.state.stop) or any(seen.alive for seen in present(snapshot))


def plain(scene: Scene) -> str:
    """The run in one line, for a file or a pipe."""
    snapshot, rates = scene.snapshot, scene.rates
    parts = [f"step {snapshot.state.step}/{scene.steps}"]
    reward = gauge(snapshot, "reward")
    if reward is not None:
        parts.append(f"reward {reward:.3f}")
    mean, most = (gauge(snapshot, name) for name in ("lag_mean_steps", "lag_max_steps"))
    parts.append(f"lag {lag_figure(mean)}/{lag_figure(most)}")
    parts.append(f"tokens/s {figure(rates.generated)} generated {figure(rates.trained)} trained")
    if reward is None or not (rates.generated or rates.trained):
        parts += scene.said
    return " · ".join(parts)
