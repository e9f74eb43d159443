"""From [up] to the processes of one machine: pure, so that it can be read and tested as a list.

Starting, watching and ending them is `supervisor.py`'s.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from pipeline.logs import LogFormat
from pipeline.machine import cores as cores_here
from pipeline.run import Run, Service
from pipeline.serve import REDIS_VARIABLE

THREADS = "OMP_NUM_THREADS"
SETTINGS = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
"""Of every process. A log is no terminal: a bar would be its last line, which tells of a death."""


class Process(Struct, frozen=True, kw_only=True):
    """One process to start. `environment` is all that it sees; `log` takes both its outputs."""

    service: str
    instance: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    log: Path


def place(
    run: Run,
    folder: Path,
    url: str,
    *,
    environment: Mapping[str, str] = os.environ,
    cores: int | None = None,
    log_format: LogFormat = LogFormat.TEXT,
) -> list[Process]:
    """Every process of the run in the order of their start: the slowest to be ready first.

    The trainer and the engines divide the cores between them, unless the user exported a number of
    threads: two processes with two threads each on two cores were measured 50 times slower.
    """
    threads = max(1, (cores or cores_here()) // (run.up.ranks + run.up.inference))
    environment = {THREADS: str(threads), **environment}
    counts: dict[Service, int] = {
        "training": 1,
        "inference": run.up.inference,
        "scoring": run.up.scoring,
        "prompting": 1,
    }
    ranks = {"training": run.up.ranks}
    form = () if log_format is LogFormat.TEXT else ("--log-format", log_format)
    return [
        _process(
            service,
            f"{service}-{number}",
            command=_together(
                (*_command(_python(run, service), service, folder), *form), ranks.get(service, 1)
            ),
            folder=folder,
            environment={**environment, REDIS_VARIABLE: url},
        )
        for service, count in counts.items()
        for number in range(count)
    ]


def evaluation(run: Run, folder: Path, *, environment: Mapping[str, str] = os.environ) -> Process:
    """The grading of the kept versions, which makes a process of one thread for each core; by the
    engines' interpreter, since it makes engines.
    """
    return Process(
        service="evaluate",
        instance="evaluate",
        argv=_command(_python(run, "inference"), "evaluate", folder),
        environment={**environment, **SETTINGS},
        log=folder / "logs" / "evaluate.log",
    )


def _process(
    service: str,
    instance: str,
    *,
    command: tuple[str, ...],
    folder: Path,
    environment: Mapping[str, str],
) -> Process:
    return Process(
        service=service,
        instance=instance,
        argv=(*command, "--instance", instance),
        environment={**environment, **SETTINGS},
        log=folder / "logs" / f"{instance}.log",
    )


def _together(command: tuple[str, ...], ranks: int) -> tuple[str, ...]:
    """The command of so many processes that are one."""
    if ranks == 1:
        return command
    return (command[0], "-m", "services.up.launch", str(ranks), *command)


def _command(python: str, name: str, folder: Path) -> tuple[str, ...]:
    return (python, "-m", "services.cli", name, str(folder / "run.toml"))


def _python(run: Run, service: Service) -> str:
    return run.up.python.get(service, sys.executable)
