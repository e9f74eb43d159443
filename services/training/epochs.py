"""The claim to be the one trainer of a run: a folder that only one can make, then the bus."""

from __future__ import annotations

from pathlib import Path

from pipeline.bus.bus import Bus


def claim(bus: Bus, folder: Path, boot: str) -> int:
    """The next epoch, claimed on the disk and on the bus. Raises Fenced where another leads.

    A fence in Redis alone cannot stop file writes, so the folder comes first.
    """
    epochs = folder / "epochs"
    epochs.mkdir(parents=True, exist_ok=True)
    while True:
        claimed = [int(path.name) for path in epochs.iterdir() if path.name.isdigit()]
        epoch = max(claimed, default=0) + 1
        epoch = max(epoch, bus.state().epoch + 1)
        try:
            (epochs / str(epoch)).mkdir()
        except FileExistsError:
            continue
        bus.groups.lead(epoch, boot)
        return epoch
