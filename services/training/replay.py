"""`sluice replay`: the recorded schedule once more, offline, from the first weights. † torch

Every checkpoint on the way, and the last one at the end, must have the same weights bit for bit:
then what a run learnt follows from its records and its RUN.toml alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pipeline import plugins
from pipeline.errors import ConfigError
from pipeline.model.fingerprint import fingerprint
from pipeline.run import Run
from services.training.checkpoints import Checkpoint, found
from services.training.parts import assemble, assist
from services.training.records import Records
from services.training.recovery import Recovery
from services.training.standing import Standing
from services.training.world import world


def replay(run: Run, *, say: Callable[[str], None] = print) -> bool:
    """Whether every checkpoint that there is was reached bit for bit. Raises ConfigError."""
    records = Records(run.folder)
    checkpoints = {mark.batch: mark for mark in found(run.folder)}
    if not (numbers := records.numbers()) or not checkpoints:
        what = "record" if checkpoints else "checkpoint"
        remedy = "name the RUN.toml of a run that has made steps, from where it was started"
        raise ConfigError(str(run.folder), None, rule=f"there is no {what} in it", remedy=remedy)
    last = checkpoints[max(checkpoints)]
    _check_same(run, last)
    torch.set_num_threads(last.threads)
    if world().rank:
        assist(run)
        return True
    parts = assemble(run)
    same, standing = True, Standing()
    recovery = Recovery(run, records, advantage=parts.advantage)
    for done in recovery.replay(parts.optimizer, standing):
        standing = done.standing
        if (mark := checkpoints.get(standing.batch)) is not None:
            same &= _compare(mark, fingerprint(parts.team.masters()), say)
    parts.team.close()
    _check_whole(records, numbers, standing)
    say(f"replayed {len(numbers)} batches, {standing.step} steps")
    return same


def _check_same(run: Run, last: Checkpoint) -> None:
    """Raises ConfigError where the run was trained by something that sums in another order."""
    backend = plugins.name_of(run.training.backend, "training.backend")
    if last.backend != backend:
        remedy = f'give --set training.backend="{last.backend}"'
        rule = f"the run was trained by {last.backend!r}"
        raise ConfigError("training.backend", backend, rule=rule, remedy=remedy)
    if last.ranks != (ranks := world().size):
        rule = f"the run was trained by {last.ranks} ranks, and other sums have other bits"
        remedy = f"torchrun --nproc-per-node {last.ranks} -m services.cli replay RUN.toml"
        raise ConfigError("sluice replay", ranks, rule=rule, remedy=remedy)


def _check_whole(records: Records, numbers: Sequence[int], standing: Standing) -> None:
    """Raises ConfigError where the replay came to a record that has no groups."""
    if standing.batch < numbers[-1]:
        first = next(number for number in numbers if number > standing.batch)
        rule = 'its groups were not recorded (training.record = "off")'
        remedy = "only what was trained with it on can be replayed"
        raise ConfigError(f"{records.folder}, batch {first}", None, rule=rule, remedy=remedy)


def _compare(mark: Checkpoint, live: str, say: Callable[[str], None]) -> bool:
    if live == mark.fingerprint:
        say(f"step {mark.step}: the same weights, bit for bit ({live})")
        return True
    say(f"step {mark.step}: other weights ({live}) than the run had ({mark.fingerprint})")
    return False
