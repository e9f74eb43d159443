"""`sluice top`: a run as it goes on, seen through its server alone. Nothing is written."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live

from pipeline.bus.bus import Bus
from pipeline.bus.connection import patience
from pipeline.errors import SluiceError
from pipeline.serve import EXIT_DONE
from pipeline.watch import Snapshot
from services.keep.keyboard import Keyboard
from services.keep.meeting import Wanted, meet_wanted
from services.view.picture import render
from services.view.sight import Sight

TURN_SECONDS = 1.0
"""Beats come once a second."""
ONCE_SECONDS = 2.0
"""Between the two looks that a rate needs."""
TRY_SECONDS = 1.0
"""For a look, on the screen: while the server is gone, q is heard all the same."""
HINT = "q leaves"


def top(wanted: Wanted, redis: str | None, *, once: bool) -> int:
    """Shows it until q or Ctrl-C; one frame, where that is asked for or there is no terminal.

    Raises ConfigError where there is no such run.
    """
    console = Console()
    live = console.is_terminal and not once
    with meet_wanted(wanted, redis) as met:
        steps = wanted.run.steps if wanted.run else None
        sight = Sight(wanted.name, steps, where=met.where, hint=HINT if live else "")
        if live:
            _follow(met.bus, sight, console)
        else:
            console.print(render(sight.scene(_second(met.bus, sight)), console.width))
    return EXIT_DONE


def _second(bus: Bus, sight: Sight) -> Snapshot:
    """A look with another one before it, unless nothing moves any more."""
    first = bus.snapshot()
    sight.scene(first)
    if first.state.stop:
        return first
    time.sleep(ONCE_SECONDS)
    return bus.snapshot()


def _follow(bus: Bus, sight: Sight, console: Console) -> None:
    """Paints over what it painted before, on a screen of its own, so that nothing flickers."""
    scene = sight.scene(bus.snapshot())
    with (
        _leaving(),
        Keyboard() as keys,
        Live(console=console, screen=True, auto_refresh=False) as on,
    ):
        while True:
            on.update(render(scene, console.width, console.height), refresh=True)
            if "q" in keys.pressed(TURN_SECONDS).lower():
                return
            try:
                with patience(TRY_SECONDS):
                    scene = sight.scene(bus.snapshot())
            except SluiceError as exc:  # a server that is started again is worth waiting for
                scene = scene._replace(note=f"{exc}; what is shown is the last look")


@contextlib.contextmanager
def _leaving() -> Iterator[None]:
    """Ctrl-C and SIGTERM are ways to leave like any other: the terminal is put back.

    Ctrl-C too where it was ignored from the start, as in what a script runs beside itself.
    """
    ways = (signal.SIGINT, signal.SIGTERM)
    former = [signal.signal(way, signal.default_int_handler) for way in ways]
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        for way, handler in zip(ways, former, strict=True):
            signal.signal(way, handler)
