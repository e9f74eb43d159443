"""Parts of a run that stand still while a file is there, and a trainer without a model.

`watched.py RUN.toml URL` is the trainer: it leads, collects, commits and announces.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipeline.bus.bus import Bus
from pipeline.config import load
from pipeline.ledger import Fates, Sum
from pipeline.life import Life
from pipeline.messages import Group, Manifest
from pipeline.metrics import Metrics
from pipeline.protocols import Answer, Example, Verdict
from pipeline.run import Run
from pipeline.watch.waits import GROUPS
from services.process import open_run

STEP_SECONDS = 0.1


class Data:
    """Endless; hangs while the file `held` is there."""

    def __init__(self, *, held: str) -> None:
        self._held = Path(held)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Example:
        _stand_still(self._held)
        return Example(prompt=f"a{index % 10}=2", reference="b")

    def digest(self) -> str:
        return "watched"


def judge(answer: Answer, *, held: str) -> Verdict:
    """Worth 1; hangs while the file `held` is there."""
    _stand_still(Path(held))
    return Verdict(reward=1.0)


class Nowhere:
    """A transport for an engine that receives nothing."""

    def __init__(self, *, run: str) -> None:
        pass

    def send(self, version: int, tensors: Iterable[object], *, epoch: int) -> str:
        return "nowhere"

    def receive(self, manifest: Manifest) -> Iterator[object]:
        return iter(())

    def drop(self, version: int) -> None:
        pass


def train(run: Run, url: str) -> None:
    """Until the run is over, or it is asked to stop."""
    bus = Bus.connect(url, run.name)
    open_run(bus, run)
    life = Life(bus, "training", "training-0", metrics=Metrics("training"))
    life.start()
    epoch, per_step, batch = 1, run.groups.per_step, 0
    bus.groups.lead(epoch, life.boot)
    _announce(bus, epoch, batch)
    stepped = False
    while not life.stopping:
        life.progress(GROUPS, moved=stepped)
        ready = bus.groups.collect(epoch, limit=per_step).groups
        if stepped := len(ready) == per_step:
            batch += 1
            groups = bus.groups.fetch([ticket.group for ticket in ready])
            fates = {group.prompt.group: _fates(group) for group in groups}
            bus.groups.commit(epoch, batch=batch, changed=True, fates=fates)
            _announce(bus, epoch, batch)
        time.sleep(STEP_SECONDS)
    life.end()


def _announce(bus: Bus, epoch: int, version: int) -> None:
    manifest = Manifest(
        version=version, step=version, epoch=epoch, fingerprint=f"f{version}", location="nowhere"
    )
    bus.versions.announce(manifest, min_version=version)


def _fates(group: Group) -> Fates:
    tokens = sum(member.completion.tokens for member in group.members.values())
    return {"trained": Sum(len(group.members), tokens)}


def _stand_still(held: Path) -> None:
    while held.exists():
        time.sleep(0.05)


if __name__ == "__main__":
    train(load(Path(sys.argv[1])), sys.argv[2])
