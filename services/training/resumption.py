"""What a trainer that has recovered tells the bus: commits not made yet, and a version. † torch

How it recovered from its disk is in `recovery`.
"""

from __future__ import annotations

import logging

from pipeline.bus.bus import Bus
from pipeline.errors import ConfigError, SluiceError
from services.training.epochs import Claim
from services.training.records import Records
from services.training.standing import Standing

log = logging.getLogger(__name__)


def resume(bus: Bus, claimed: Claim, records: Records, standing: Standing) -> Standing:
    """Bring the run and the trainer to one state; where both stand, under a version never used.

    Raises ConfigError where the trainer's folder knows nothing of what the run has done.
    """
    state = bus.state()
    if state.batch > standing.batch:
        standing = _go_back(bus, claimed, standing)
    commit_again(bus, claimed, records, standing)
    known = max(state.version, claimed.last_noted(), standing.version)
    claimed.note(known + 1)
    return standing._replace(version=known + 1)


def commit_again(bus: Bus, claimed: Claim, records: Records, standing: Standing) -> None:
    """Commit what the trainer has stepped and the server does not know. Raises SluiceError."""
    known = bus.state()
    for outcome in records.outcomes(
        known.batch, upto=standing.batch, since=known.step, step=standing.step
    ):
        reply = bus.groups.commit(claimed.epoch, **outcome._asdict())
        if reply == "behind":
            raise SluiceError(f"the server lost batches while it was told of batch {outcome.batch}")
        log.info("committed batch=%d again: %s", outcome.batch, reply)


def _go_back(bus: Bus, claimed: Claim, standing: Standing) -> Standing:
    """The disk has lost steps that the run knows: it goes on from what there is, and says so."""
    state, folder = bus.state(), claimed.run_folder
    if standing.batch == 0:
        raise ConfigError(
            str(folder),
            None,
            rule=f"has no record of this run, which has {state.batch} batches committed",
            remedy="start training where the run's folder is, or choose another run name",
        )
    log.warning(
        "%s ends with batch %d, and the run has %d: what was learnt since is lost, and training"
        " goes on from step %d",
        *(folder, standing.batch, state.batch, standing.step),
    )
    bus.groups.rollback(claimed.epoch, standing.step)
    return standing._replace(batch=state.batch)
