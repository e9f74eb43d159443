"""`sluice report`: the report of a run at any time, from its folder and its server."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from pipeline.errors import ConfigError, SluiceError
from pipeline.run import Run
from pipeline.serve import EXIT_DONE
from pipeline.watch import Snapshot
from services.keep.meeting import Wanted, meet_wanted
from services.view import page
from services.view.build import Source, build
from services.view.headline import summary
from services.view.journal import StepLine
from services.view.outcome import Outcome, standing
from services.view.report import Report, read, save
from services.view.scene import rewards
from services.view.writing import gather, write

UNKNOWN = Outcome("unknown", "as far as its folder knows")


def report(wanted: Wanted, redis: str | None) -> int:
    """Writes it and says where; into the run's folder, or here where that is not.

    Raises ConfigError where there is neither a folder nor a server that knows the run.
    """
    folder = wanted.folder if wanted.folder.is_dir() else None
    snapshot = _look(wanted, redis, may_lack=folder is not None and wanted.run is not None)
    try:
        if folder is None or wanted.run is None:
            assert snapshot is not None, "it may only lack where there is a folder"
            made, path = _afar(wanted, snapshot)
        else:
            made, path = _at_home(wanted.run, folder, snapshot)
    except OSError as exc:
        raise SluiceError(f"the report cannot be written: {exc}") from exc
    print("\n".join([*summary(made), f"report: {path}"]))
    return EXIT_DONE


def _look(wanted: Wanted, redis: str | None, *, may_lack: bool) -> Snapshot | None:
    try:
        with meet_wanted(wanted, redis) as met:
            return met.bus.snapshot()
    except SluiceError as exc:
        if not may_lack:
            raise
        print(f"without its server: {_reason(exc)}")
        return None


def _reason(exc: SluiceError) -> str:
    """Without the remedy, since the folder tells instead."""
    if not isinstance(exc, ConfigError):
        return str(exc)
    return str(exc).removesuffix(f"; {exc.remedy}").removeprefix("--redis: is needed: ")


def _at_home(run: Run, folder: Path, snapshot: Snapshot | None) -> tuple[Report, Path]:
    """In the run's folder."""
    outcome = standing(snapshot) if snapshot else UNKNOWN
    source = gather(folder, run, snapshot, outcome=outcome)
    former = _former(folder)
    known = source.lines[-1].step if source.lines else 0
    if snapshot is None and former and former.steps >= known:
        save(_as_it_was(former), folder)
        return _as_it_was(former), page.draw(folder)
    if snapshot and former and _saw_the_end(former, outcome, snapshot.state.step):
        ended = Outcome(former.outcome, former.reason)
        source = source._replace(outcome=ended, restarts=former.restarts)
    return write(source, folder)


def _saw_the_end(former: Report, now: Outcome, step: int) -> bool:
    """Whether it was made when the run ended as it stands now: by `sluice up`, which knows why."""
    return former.steps == step and now.word != "running" and former.outcome in ("failed", now.word)


def _former(folder: Path) -> Report | None:
    """The report that was made last, if it can be read."""
    try:
        return read(folder)
    except (OSError, msgspec.MsgspecError):
        return None


def _as_it_was(former: Report) -> Report:
    """What was said last, less what can no longer be true."""
    if former.outcome != "running":
        return former
    return replace(former, outcome=UNKNOWN.word, reason=UNKNOWN.reason, now=[], advice=[])


def _afar(wanted: Wanted, snapshot: Snapshot) -> tuple[Report, Path]:
    """Where the folder is not: from the server alone, into a file of its own."""
    steps = [StepLine(step=int(step), reward=reward) for step, reward in rewards(snapshot)]
    outcome, path = standing(snapshot), Path(f"{wanted.name}.html")
    made = build(Source(wanted.name, wanted.run, snapshot, steps, outcome))
    path.write_text(page.render(made), encoding="utf-8")
    return made, path
