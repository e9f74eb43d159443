"""Writes the report of a run: report.json, and report.html beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pipeline.run import Run
from pipeline.watch import Snapshot
from services.view import page, report
from services.view.build import Source, build
from services.view.journal import read_steps
from services.view.outcome import Outcome
from services.view.report import Report


def gather(
    folder: Path,
    run: Run,
    snapshot: Snapshot | None,
    *,
    outcome: Outcome,
    started: str = "",
    restarts: Mapping[str, int] | None = None,
) -> Source:
    """What the folder of a run adds to the last look at it."""
    return Source(
        name=run.name,
        run=run,
        snapshot=snapshot,
        lines=read_steps(folder / "metrics.jsonl"),
        points=report.read_points(folder / "evaluation.json"),
        outcome=outcome,
        started=started,
        restarts=restarts,
    )


def write(source: Source, folder: Path) -> tuple[Report, Path]:
    """Both files in the folder; the report, and where its page is."""
    made = build(source)
    report.save(made, folder)
    return made, page.draw(folder)
