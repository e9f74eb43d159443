"""`sluice up` as a process of its own, with fakes for services: `up_driver.py NAME ROLES_JSON`.

ROLES maps an instance to what it plays; `redis`, `restarts`, `evaluation` and `lease_seconds` are
settings.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.run import Bus, Evaluation, Model, Run, Up
from services.up import placement
from services.up.placement import Process
from services.up.service import up

FAKES = Path(__file__).with_name("up_fakes.py")


def main(
    name: str,
    roles: dict[str, str],
    *,
    restarts: int = 0,
    evaluation: str = "",
    redis: str | None = None,
    lease_seconds: float = 15.0,
) -> int:
    """Runs it; its exit code."""

    def place(run: Run, folder: Path, url: str) -> Sequence[Process]:
        return [
            fake(instance, (role, str(folder / "run.toml"), url, instance), folder)
            for instance, role in roles.items()
        ]

    def grade(run: Run, folder: Path) -> Process:
        code = f"import pathlib; print('graded'); {evaluation.replace('FOLDER', repr(str(folder)))}"
        real = placement.evaluation(run, folder)
        return Process(
            service=real.service,
            instance=real.instance,
            argv=(sys.executable, "-c", code),
            environment=real.environment,
            log=real.log,
        )

    run = Run(
        name=name,
        steps=3,
        model=Model(path="none"),
        data="jsonl",
        bus=Bus(lease_seconds=lease_seconds),
        evaluation=Evaluation(data="jsonl") if evaluation else None,
        up=Up(restarts=restarts),
    )
    return up(run, redis=redis, place=place, evaluation=grade)


def fake(instance: str, words: tuple[str, ...], folder: Path) -> Process:
    """The process that plays a role."""
    return Process(
        service=instance.rpartition("-")[0],
        instance=instance,
        argv=(sys.executable, str(FAKES), *words),
        environment=dict(os.environ),
        log=folder / "logs" / f"{instance}.log",
    )


if __name__ == "__main__":
    told = json.loads(sys.argv[2])
    keys = ("restarts", "evaluation", "redis", "lease_seconds")
    settings = {k: told.pop(k) for k in keys if k in told}
    sys.exit(main(sys.argv[1], told, **settings))
