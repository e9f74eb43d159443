"""The claim to be the one trainer of a run: a folder that only one can make, then the bus.

A fence in Redis alone cannot stop file writes, so the folder comes first, and is looked at again
before anything is written that counts.
"""

from __future__ import annotations

import time
from pathlib import Path

from pipeline import disk
from pipeline.bus.bus import Bus
from pipeline.errors import ConfigError, Fenced
from pipeline.watch import ENDED, Seen

LOOK_SECONDS = 0.25
STARTING = "start"


class Claim:
    """An epoch that was claimed. Every act of a trainer with a lower one is refused."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self.run_folder, self.epoch = folder, epoch
        self._folder = folder / "epochs"

    def check(self) -> None:
        """Raises Fenced where another trainer has claimed a higher epoch."""
        if (newest := _newest(self._folder)) > self.epoch:
            raise Fenced(f"epoch {self.epoch} is over: another trainer has claimed {newest}")

    def note(self, version: int) -> None:
        """The first version of this epoch is about to be announced."""
        disk.write(self._folder / str(self.epoch) / "version", str(version).encode())

    def last_noted(self) -> int:
        """The highest version that any epoch noted; -1 before the first."""
        noted = [int(path.read_text() or -1) for path in self._folder.glob("*/version")]
        return max(noted, default=-1)


def await_former(bus: Bus, boot: str, lease_seconds: float) -> None:
    """Returns once no other trainer is alive; raises Fenced where one is seen to beat.

    One that died without a supervisor is still taken for alive until its lease is over.
    """
    ages: dict[str, float] = {}
    deadline = time.monotonic() + 2 * lease_seconds
    while others := _others(bus, boot):
        for other in others:
            name = other.beat.boot
            if other.age_seconds < ages.setdefault(name, other.age_seconds):
                raise Fenced(
                    f"{name} trains this run, and is alive: stop it, or choose another name"
                )
            ages[name] = other.age_seconds
        if time.monotonic() > deadline:
            raise Fenced(f"{others[0].beat.boot} trains this run, and its lease does not end")
        time.sleep(LOOK_SECONDS)


def claim(bus: Bus, folder: Path, boot: str) -> Claim:
    """The next epoch, on the disk and on the bus. Raises Fenced where another was faster."""
    epochs = folder / "epochs"
    epoch = max(_newest(epochs), bus.state().epoch) + 1
    try:
        epochs.mkdir(parents=True, exist_ok=True)
        (epochs / str(epoch)).mkdir()
    except FileExistsError as exc:
        raise Fenced(f"another trainer has just claimed epoch {epoch} of {folder.name}") from exc
    except OSError as exc:
        rule = f"cannot be written ({exc.strerror})"
        raise ConfigError(str(folder), None, rule=rule, remedy="start where you may write") from exc
    bus.groups.lead(epoch, boot)
    return Claim(folder, epoch)


def _others(bus: Bus, boot: str) -> list[Seen]:
    """Trainers that are alive: the one that leads, and those that are past waiting for it."""
    snapshot = bus.snapshot()
    return [
        seen
        for seen in snapshot.beats
        if seen.beat.service == "training"
        and seen.alive
        and seen.beat.boot != boot
        and seen.beat.waiting_for != ENDED
        and (seen.beat.boot == snapshot.state.trainer or seen.beat.waiting_for != STARTING)
    ]


def _newest(epochs: Path) -> int:
    names = [path.name for path in epochs.glob("*")] if epochs.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=0)
