"""A real trainer that kills itself at a named point: `dying_trainer.py RUN.toml INSTANCE FAULTS`.

FAULTS is a file of lines `before|after ACT N`: the trainer dies at the N-th ACT of its life. Each
takes the first line away, so that the one after it gets the next; without a line it lives. Of
several ranks it is rank 0 that dies.

To import torch takes longer than all that a trainer does here, so one that has no other ranks is a
fork of this process, which has it, and so is each that follows. This process dies at every sixth
death as well, for whoever started it to start it again.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import transformers

from pipeline import config
from pipeline.bus.bus import Bus
from pipeline.life import Life
from pipeline.logs import configure_logs
from pipeline.metrics import Metrics
from pipeline.serve import REDIS_VARIABLE, exit_code
from services.process import open_run
from services.training import build as training
from services.training.parts import assist
from services.training.world import world
from services.up.spawn import tie

TOGETHER = 6


def main(run_path: str, instance: str, faults: str) -> None:
    """The service, as `services.process` runs it, but for the fault."""
    configure_logs()
    run = config.load(Path(run_path))
    if world().rank:
        assist(run, Bus.connect(os.environ[REDIS_VARIABLE], run.name).groups.fetch)
        return
    if "WORLD_SIZE" not in os.environ:
        _become_a_fork(run.name, instance)
    fault = _next(Path(faults))
    bus = Bus.connect(os.environ[REDIS_VARIABLE], run.name)
    open_run(bus, run)
    metrics = Metrics("training")
    life = Life(bus, "training", instance, metrics=metrics)
    life.start()
    service = training.build(run, bus, life=life, metrics=metrics)
    if fault:
        _plant(service, *fault)
    service.run()
    life.end()


def _become_a_fork(run: str, instance: str) -> None:
    """Returns in a fork, and in another one once that was killed, as `sluice up` would have it."""
    assert transformers.LlamaForCausalLM, "imported once for all"
    die_with_it, deaths = tie(os.getpid()), 0
    while child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL:
            sys.exit(code)
        deaths += 1
        if deaths == TOGETHER:
            os.kill(os.getpid(), signal.SIGKILL)
        with closing(Bus.connect(os.environ[REDIS_VARIABLE], run)) as bus:
            bus.bury(instance)
    if die_with_it:
        die_with_it()


def _next(faults: Path) -> tuple[str, str, int] | None:
    lines = faults.read_text().splitlines()
    if not lines:
        return None
    faults.write_text("".join(f"{line}\n" for line in lines[1:]))
    when, act, number = lines[0].split()
    return when, act, int(number)


def _plant(service: training.Training, when: str, act: str, number: int) -> None:
    """`act` is a method of the loop, or of one of its parts, as in `publisher.publish`."""
    *parents, name = act.split(".")
    owner: Any = service
    for parent in parents:
        owner = getattr(owner, parent)
    setattr(owner, name, _dying(getattr(owner, name), when, number))


def _dying(act: Callable[..., Any], when: str, number: int) -> Callable[..., Any]:
    calls = 0

    def once(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if (calls, when) == (number, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        result = act(*args, **kwargs)
        if (calls, when) == (number, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return once


if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(*sys.argv[1:])))
