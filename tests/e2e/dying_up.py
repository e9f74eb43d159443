"""`sluice up` with a trainer that dies at planned points: `dying_up.py RUN.toml FAULTS [URL]`

With a fourth argument, WORLDS of `dying_ranks`, it is of so many ranks each time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from pipeline import config
from pipeline.run import Run
from services.up.placement import Process, place
from services.up.service import up

TRAINER, RANKS = (Path(__file__).with_name(f"dying_{one}.py") for one in ("trainer", "ranks"))


def main(path: str, faults: str, url: str | None = None, worlds: str = "") -> int:
    """Its exit code."""

    def placed(run: Run, folder: Path, url: str) -> Sequence[Process]:
        return [
            replace(process, argv=_argv(process, folder, faults, worlds))
            if process.service == "training"
            else process
            for process in place(run, folder, url)
        ]

    return up(config.load(Path(path)), redis=url, place=placed)


def _argv(process: Process, folder: Path, faults: str, worlds: str) -> tuple[str, ...]:
    starts = (sys.executable, str(RANKS), worlds) if worlds else ()
    trainer = (sys.executable, str(TRAINER))
    return (*starts, *trainer, str(folder / "run.toml"), process.instance, faults)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
