"""What a trainer that has recovered tells the bus: commits not made yet, and a version. † torch

How it recovered from its disk is in `recovery`.
"""

from __future__ import annotations

import logging

from pipeline.bus.bus import Bus
from pipeline.errors import ConfigError, SluiceError
from pipeline.ledger import Sum, total
from pipeline.watch import State
from services.training.considered import TRAINED
from services.training.epochs import Claim
from services.training.records import Records
from services.training.standing import Standing

log = logging.getLogger(__name__)


def resume(bus: Bus, claimed: Claim, records: Records, standing: Standing) -> Standing:
    """Bring the run and the trainer to one state; where both stand, under a version never used.

    Raises ConfigError where the trainer's folder knows nothing of what the run has done.
    """
    if bus.state().batch > standing.batch:
        standing = _go_back(bus, claimed, records, standing)
    commit_again(bus, claimed, records, standing)
    known = max(bus.state().version, claimed.last_noted(), standing.version)
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


def _go_back(bus: Bus, claimed: Claim, records: Records, standing: Standing) -> Standing:
    """The run knows steps that cannot be made again: it goes on from what there is, and says so.

    What they trained is `undone`, as far as their records tell; those go, so that a server which
    is put back to before these steps is not told of them: their groups may be trained once more.
    """
    state, folder = bus.state(), claimed.run_folder
    if standing.batch == 0 and claimed.last_noted() < 0:
        raise ConfigError(
            str(folder),
            None,
            rule=f"has no record of this run, which has {state.batch} batches committed",
            remedy="start training where the run's folder is, or choose another run name",
        )
    undone = _trained(records, standing, state)
    log.warning(
        "%s has the weights of batch %d, and the run has made %d: training goes on from step %d,"
        " lost_steps=%d undone_members=%d",
        *(folder, standing.batch, state.batch, standing.step),
        *(state.step - standing.step, undone.members),
    )
    bus.groups.rollback(claimed.epoch, standing.step, undone=undone)
    records.forget(after=standing.batch)
    return standing._replace(batch=state.batch)


def _trained(records: Records, standing: Standing, state: State) -> Sum:
    """What the run has trained since `standing`."""
    outcomes = records.outcomes(
        standing.batch, upto=state.batch, since=standing.step, step=state.step
    )
    fates = total(of_group for outcome in outcomes for of_group in outcome.fates.values())
    return fates.get(TRAINED, Sum(0, 0))
