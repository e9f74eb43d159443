"""`sluice doctor`: what a run waits for, and whether it is sound. Nothing is written."""

from __future__ import annotations

from rich.console import Console

from pipeline.run import Run
from pipeline.serve import EXIT_DONE, EXIT_FAILED
from services.keep.meeting import Met, check_open, meet
from services.keep.sheet import Look, faults, lines

LETTERS = 5


def doctor(run: Run, *, redis: str | None) -> int:
    """Prints the sheet; 1 where a fault was found. Raises ConfigError where there is no run."""
    with meet(run, redis) as met:
        look = _look(run, met)
    console, found = Console(soft_wrap=True), faults(look)
    for line in lines(look):
        bold = not line.startswith(" ")
        console.print(line, style="bold" if bold else "", markup=False, highlight=False)
    return EXIT_FAILED if found else EXIT_DONE


def _look(run: Run, met: Met) -> Look:
    check_open(run.name, met)
    return Look(
        name=run.name,
        where=met.where,
        steps=run.steps,
        snapshot=met.bus.snapshot(),
        audit=met.bus.audit(),
        letters=met.bus.dead_letters(LETTERS),
    )
