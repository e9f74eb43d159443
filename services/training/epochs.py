"""The claim to be the one trainer of a run: a folder that only one can make, then the bus."""

from __future__ import annotations

from pathlib import Path

from pipeline.bus.bus import Bus
from pipeline.errors import ConfigError, Fenced

FIRST = 1


def check(bus: Bus, folder: Path) -> None:
    """Raises Fenced where the run has a trainer, or had one: it cannot be resumed yet."""
    state = bus.state()
    if state.stop == "done":
        raise Fenced(f"{folder.name} is done ({state.reason}); choose another run name")
    if state.epoch:
        raise Fenced(
            f"{folder.name} has had a trainer ({state.trainer}, at step {state.step}): if that one"
            " lives it goes on, and if it died the run cannot be resumed yet; choose another run"
            " name"
        )
    if _path(folder).exists():
        raise _written(folder)


def claim(bus: Bus, folder: Path, boot: str) -> int:
    """The epoch, claimed on the disk and on the bus. Raises Fenced where another was faster.

    A fence in Redis alone cannot stop file writes, so the folder comes first.
    """
    check(bus, folder)
    try:
        _path(folder).mkdir(parents=True)
    except FileExistsError as exc:
        raise _written(folder) from exc
    except OSError as exc:
        rule = f"cannot be written ({exc.strerror})"
        raise ConfigError(str(folder), None, rule=rule, remedy="start where you may write") from exc
    bus.groups.lead(FIRST, boot)
    return FIRST


def _path(folder: Path) -> Path:
    return folder / "epochs" / str(FIRST)


def _written(folder: Path) -> Fenced:
    return Fenced(
        f"{folder} holds what another trainer wrote, and a run cannot be resumed yet; choose"
        " another run name, or remove the folder"
    )
