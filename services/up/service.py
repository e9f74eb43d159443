"""`sluice up`: one run on one machine, from its server to its report.

Starts the processes of a run and waits for the run's stop, for a signal, or for a child that
cannot be helped. It speaks to its children through the bus and signals only.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from pipeline.bus.bus import Bus
from pipeline.errors import ConfigError, SluiceError
from pipeline.logs import LogFormat, configure_logs, say_why
from pipeline.run import ENDED, Run
from pipeline.serve import EXIT_DONE, EXIT_FAILED, EXIT_INPUT
from pipeline.watch import Snapshot
from pipeline.weights.folders import default_root, sweep
from services.process import open_run
from services.up.embedded import Embedded, Given
from services.up.folder import Claimed, claim, mark_ended
from services.up.interrupts import Interrupts
from services.up.lookout import Lookout
from services.up.placement import Process, evaluation
from services.up.placement import place as place_all
from services.up.spawn import Spawner, last_line
from services.up.supervisor import Child, ChildFailed, Supervisor
from services.view.headline import summary
from services.view.outcome import Outcome, proven, told
from services.view.panel import Panel
from services.view.writing import gather, write

TURN_SECONDS = 0.25
LEAVE_SECONDS = 30.0
TERM_SECONDS = 10.0

Place = Callable[[Run, Path, str], Sequence[Process]]
PlaceEvaluation = Callable[[Run, Path], Process]


def up(
    run: Run,
    *,
    redis: str | None = None,
    log_format: LogFormat = LogFormat.TEXT,
    place: Place | None = None,
    evaluation: PlaceEvaluation = evaluation,
) -> int:
    """Runs it to its end; the code says how (pipeline.serve): 0 is also a stop by a signal.

    The reason of a failure is the last line on standard error.
    """
    configure_logs(log_format, level=logging.WARNING, run=run.name, service="up", instance="up")
    place = place or partial(place_all, log_format=log_format)
    try:
        with Interrupts() as interrupts:
            outcome = _up(run, redis or run.bus.url, interrupts, place, evaluation)
    except ConfigError as exc:
        outcome = Outcome("failed", str(exc), EXIT_INPUT)
    except SluiceError as exc:
        outcome = Outcome("failed", str(exc), EXIT_FAILED)
    if outcome.word == "failed":
        say_why(outcome.reason)
    return outcome.code


def _up(
    run: Run, redis: str, interrupts: Interrupts, place: Place, evaluation: PlaceEvaluation
) -> Outcome:
    claimed = claim(run)
    run, folder = claimed.run, claimed.folder
    with Spawner() as spawner, contextlib.ExitStack() as opened:
        try:
            server, url, bus = _meet(claimed, redis, spawner, opened)
        except SluiceError:
            opened.close()
            claimed.release()
            raise
        if claimed.resumed:
            print(f"run {run.name} goes on where it was, at step {bus.state().step}", flush=True)
        processes, limit = place(run, folder, url), run.up.restarts
        supervisor = Supervisor(processes, spawner, bus=bus, restarts=limit)
        grader = Child(evaluation(run, folder), spawner)
        return Up(run, folder, bus, server, supervisor, interrupts).run(grader)


def _meet(
    claimed: Claimed, redis: str, spawner: Spawner, opened: contextlib.ExitStack
) -> tuple[Given | Embedded, str, Bus]:
    """The server, its URL, and the run on it; `opened` closes them."""
    run, folder = claimed.run, claimed.folder
    limit = run.up.restarts
    server = Given(redis) if redis else Embedded(folder, spawner, restarts=limit)
    opened.callback(server.stop)
    url = server.start()
    bus = opened.enter_context(contextlib.closing(Bus.connect(url, run.name)))
    open_run(bus, run)
    if not claimed.resumed:
        _check_new(bus, run)
    return server, url, bus


def _check_new(bus: Bus, run: Run) -> None:
    if bus.state().epoch:
        remedy = "choose another name, or delete them by `sluice purge`"
        raise ConfigError("name", run.name, rule="has keys of another run there", remedy=remedy)


class Up:
    """One run in progress.

    Waits for: the run's stop, a signal, a child or a server that cannot be started again.
    Unblocked by: the poll, four times a second. It is a display; this is the one permitted poll.
    """

    def __init__(
        self,
        run: Run,
        folder: Path,
        bus: Bus,
        server: Embedded | Given,
        supervisor: Supervisor,
        interrupts: Interrupts,
    ) -> None:
        self._run, self._folder, self._bus, self._server = run, folder, bus, server
        self._supervisor, self._interrupts = supervisor, interrupts
        self._lookout = Lookout(bus, supervisor.events.append)
        self._console = Console()
        self._panel = Panel(run, self._console)
        self._snapshot: Snapshot | None = None
        self._started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    def run(self, grader: Child) -> Outcome:
        """From the first child to the report; no child runs afterwards, whatever happens."""
        try:
            if not self._interrupts.asked:
                self._supervisor.start()
            outcome = self._watch()
            self._leave()
            self._settle()
            if self._snapshot:
                outcome = proven(outcome, self._snapshot.ledger, self._folder / "logs")
            if outcome.word == "done" and self._run.evaluation:
                outcome = self._evaluate(grader) or outcome
            if outcome.word in ("done", "failed") and self._snapshot and self._snapshot.state.stop:
                mark_ended(self._folder)
        finally:
            self._supervisor.kill()
            self._panel.close()
            sweep(default_root())  # what a trainer that was killed left in memory
        self._report(outcome)
        return outcome

    def _watch(self) -> Outcome:
        while not self._interrupts.asked:
            try:
                self._keep()
                self._look(time.monotonic())
            except ChildFailed as exc:
                return Outcome("failed", str(exc), exc.code)
            except SluiceError as exc:
                return Outcome("failed", str(exc), EXIT_FAILED)
            if self._snapshot and (stop := self._snapshot.state.stop):
                return told(stop, self._snapshot.state.reason)
            self._paint()
            time.sleep(TURN_SECONDS)
        return Outcome("stopped", f"stopped by {self._interrupts.asked}")

    def _look(self, at: float) -> None:
        if snapshot := self._lookout.look(at):
            self._snapshot = snapshot
            self._supervisor.heed(snapshot, at)

    def _keep(self) -> None:
        if event := self._server.keep():
            self._supervisor.events.append(event)
        self._supervisor.tend()

    def _leave(self) -> None:
        """Children that know of the end leave by themselves; then they are asked, then killed."""
        if self._snapshot and self._snapshot.state.stop:
            self._await_leaving(LEAVE_SECONDS)
        self._supervisor.ask()
        self._await_leaving(TERM_SECONDS)
        self._supervisor.kill()

    def _await_leaving(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := self._supervisor.leaving()) and time.monotonic() < deadline:
            if self._interrupts.urgent:
                return
            self._paint(f"waiting for {', '.join(left)} to leave")
            time.sleep(TURN_SECONDS / 5)

    def _settle(self) -> None:
        """The last picture. A run that nobody finished goes on when it is started again."""
        with contextlib.suppress(SluiceError):  # without a server the former picture has to do
            self._snapshot = self._bus.snapshot()

    def _evaluate(self, grader: Child) -> Outcome | None:
        """Grades what was kept; an outcome only where that did not end well."""
        grader.start()
        try:
            while (code := grader.ended()) is None:
                if self._interrupts.asked:
                    reason = f"stopped by {self._interrupts.asked} in its evaluation"
                    return Outcome("stopped", reason)
                graded = last_line(grader.process.log, begins="version ")  # not what vLLM warns of
                self._paint(f"evaluating: {graded or 'the models load'}")
                time.sleep(TURN_SECONDS)
        finally:
            grader.end(0.0 if self._interrupts.urgent else TERM_SECONDS)
        if code == EXIT_DONE:
            return None
        return Outcome("failed", f"evaluate {grader.how(code)}{grader.last_words()}", EXIT_FAILED)

    def _paint(self, note: str = "") -> None:
        if self._snapshot is not None:
            self._panel.show(self._snapshot, events=self._supervisor.events, note=note)

    def _report(self, outcome: Outcome) -> None:
        if self._snapshot is None:  # it ended before its first picture
            return
        source = gather(
            self._folder,
            self._run,
            self._snapshot,
            outcome=outcome,
            started=self._started,
            restarts=self._supervisor.restarts,
        )
        try:
            made, path = write(source, self._folder)
        except OSError as exc:
            print(f"the report cannot be written: {exc}", flush=True)
            return
        lines = [*summary(made), f"report: {path}"]
        if not (self._folder / ENDED).exists():
            lines.append(f"the run is not over: {_way_on(outcome)}")
        self._console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _way_on(outcome: Outcome) -> str:
    """What it takes to go on with a run."""
    if outcome.code == EXIT_INPUT:
        return "mend its input first, then the same command goes on with it"
    return "the same command goes on with it"
