"""From what is on disk to a trainer that stands where the former one fell. † torch

The newest checkpoint is loaded, and every record since is stepped again: the same groups, judged as
they were, packed as RUN.toml says. What is then told to the bus is in `resumption`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import torch

from pipeline import plugins
from pipeline.digests import verify
from pipeline.errors import SluiceError
from pipeline.model.fingerprint import fingerprint
from pipeline.protocols import Advantage, Backend
from pipeline.run import Run
from pipeline.versions import Freshness
from services.training.batch import Batch
from services.training.batch import build as build_batch
from services.training.checkpoints import Checkpoint, Checkpoints
from services.training.considered import Rules, consider
from services.training.optimize import Optimizer, Step
from services.training.records import Record, Records
from services.training.standing import Standing
from services.training.streams import coefficients
from services.training.weights import treatment
from services.training.world import world

log = logging.getLogger(__name__)


class Replayed(NamedTuple):
    """A record that was stepped again, and where that led."""

    record: Record
    step: Step
    standing: Standing


class Recovery:
    """Replays a run's records on one back end."""

    def __init__(self, run: Run, records: Records, *, advantage: Advantage) -> None:
        self.records, self._run, self._advantage = records, run, advantage

    def load(self, backend: Backend, checkpoints: Checkpoints) -> Standing:
        """The newest checkpoint into the back end. Raises SluiceError where it is damaged."""
        found = checkpoints.newest()
        if found is None:
            return Standing()
        path, mark = found
        verify(path, mark.files)
        backend.load_state(str(path / "state"))
        checkpoints.recall(path)
        if (live := fingerprint(backend.masters())) != mark.fingerprint:
            raise SluiceError(f"{path} is damaged: its weights are {live}, not {mark.fingerprint}")
        log.info("loaded=%s step=%d ranks=%d->%d", path, mark.step, mark.ranks, world().size)
        return Standing(mark.batch, mark.step, mark.version)

    def replay(self, optimizer: Optimizer, standing: Standing) -> Iterator[Replayed]:
        """Step the records after `standing` again, in order, up to one without its groups.

        Raises SluiceError for one unlike what it was.
        """
        for record in self.records.after(standing.batch):
            if not record.groups:
                return
            if record.step != standing.step:
                raise SluiceError(
                    f"record {record.batch} was planned at step {record.step}, and what is before"
                    f" it leads to step {standing.step}: a record is missing"
                )
            batch = self._batch(record)
            step = optimizer.step(batch, record)
            moved = int(step.result.finite)
            standing = Standing(record.batch, standing.step + moved, record.version + moved)
            log.info("replayed batch=%d step=%d", record.batch, standing.step)
            yield Replayed(record, step, standing)

    def _batch(self, record: Record) -> Batch:
        lag = self._run.lag
        freshness = Freshness(record.step, record.steps, lag.max, lag.unit)
        streams, treated = coefficients(self._run.objective), treatment(self._run)
        rules = Rules(freshness, self._advantage, streams, treated)
        groups = [consider(brief, rules) for brief in record.groups]
        batch = build_batch(groups, rules, examples=record.examples)
        if batch.fates != record.fates:
            raise SluiceError(
                f"record {record.batch} of {self.records.folder} gives other fates than it did:"
                " it was written by another release, or under another RUN.toml"
            )
        return batch


def mark(run: Run, standing: Standing) -> Checkpoint:
    """What a checkpoint says of itself before it is written."""
    return Checkpoint(
        **standing._asdict(),
        backend=plugins.name_of(run.training.backend, "training.backend"),
        ranks=world().size,
        threads=torch.get_num_threads(),
    )
