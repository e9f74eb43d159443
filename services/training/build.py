"""Where the parts of training meet: the composition root of the service."""

from __future__ import annotations

from functools import partial

from pipeline import grades
from pipeline.bus.bus import Bus
from pipeline.grades import meanwhile
from pipeline.life import Life
from pipeline.metrics import Metrics
from pipeline.model.load import DTYPES
from pipeline.run import Run
from pipeline.verdicts import called, terms
from pipeline.weights.direct import check_fits
from pipeline.weights.origin import Origin
from pipeline.weights.publisher import Publisher
from services.process import open_run
from services.training.checkpoints import Checkpoints
from services.training.epochs import Claim, await_former, claim
from services.training.evaluations import Evaluations
from services.training.gaming import Gaming
from services.training.imitation import AT as IMITATED
from services.training.imitation import examples_of
from services.training.journal import Journal, step_line
from services.training.metrics import Numbers
from services.training.parts import Parts, assemble
from services.training.pool import NOTHING_REFUSED, Pool
from services.training.records import Records
from services.training.recovery import Recovery
from services.training.remembered import remembering
from services.training.resumption import resume
from services.training.run_metrics import looking
from services.training.service import LONGEST_ACT_SECONDS, Training
from services.training.sinks.feeds import Feeds, feeds
from services.training.standing import Standing
from services.training.streams import coefficients
from services.training.weights import treatment


def build(run: Run, bus: Bus, *, life: Life, metrics: Metrics) -> Training:
    """Raises ConfigError for parts that cannot be had, Fenced where there is another trainer."""
    numbers = Numbers(metrics, shadows=_shadows(run))
    sinks = _sinks(run, numbers)
    await_former(bus, life.boot, run.bus.lease_seconds)
    with life.long("model", 600):
        parts, examples = assemble(run, bus.groups.fetch), examples_of(run)
    if examples:  # a run that goes on imitates what it began with, as it goes on with its data
        open_run(bus, run, **{IMITATED: examples.digest()})
    transport = Origin(run.weights, run.name, bus.url).transport()
    check_fits(run, transport)
    records, checkpoints = Records(run.folder), _checkpoints(run, parts, numbers)
    claimed = claim(bus, run.folder, life.boot)
    records.sweep()
    numbers.folder = run.folder
    life.also = looking(metrics, bus, target_steps=run.steps)
    every = run.evaluation.every if run.evaluation else 0
    journal = Journal(run.folder, parts.save_model, keep_every=every, feeds=sinks)
    with life.long("replay of its records", LONGEST_ACT_SECONDS):
        standing = _caught_up(run, parts, records=records, checkpoints=checkpoints, journal=journal)
        standing = resume(bus, claimed, records, standing)
    gaming = Gaming()
    for line in journal.lines():
        if line.get("reward") is not None:
            numbers.rewards.add(line["step"], line["reward"])
        gaming.observe(line)
    evaluations = _evaluations(run, bus, claimed.epoch)
    for point in evaluations.points() if evaluations else ():
        numbers.evaluated(point)
    return Training(
        run,
        bus,
        parts.team,
        claimed=claimed,
        standing=standing,
        pool=_pool(run, bus, parts, claimed=claimed, standing=standing),
        optimizer=parts.optimizer,
        publisher=Publisher(
            partial(bus.versions.announce, min_version=standing.version),
            transport,
            epoch=claimed.epoch,
            dtype=DTYPES[run.model.dtype],
            frozen=parts.frozen,
        ),
        records=records,
        checkpoints=checkpoints,
        journal=journal,
        life=life,
        numbers=numbers,
        gaming=gaming,
        window=_window(run, bus, claimed.epoch, standing),
        canary=parts.canary,
        examples=examples,
        evaluations=evaluations,
    )


def _window(run: Run, bus: Bus, epoch: int, standing: Standing) -> int:
    """What is in force: as it was narrowed, or all of it where nothing steers it any more."""
    if run.lag.control is None:
        bus.groups.narrow(epoch, batch=standing.batch, window=run.window)
    return bus.snapshot().window


def _shadows(run: Run) -> list[str]:
    """The names of the scorers that only watch."""
    found = terms(run.scoring.scorers)
    return [name for name, term in zip(called(found), found, strict=True) if term.is_shadow]


def _sinks(run: Run, numbers: Numbers) -> Feeds:
    def failed(name: str) -> None:
        numbers.sink_missed.labels(sink=name).inc()

    return feeds(run.training.sinks, run.folder, failed=failed)


def _checkpoints(run: Run, parts: Parts, numbers: Numbers) -> Checkpoints:
    return Checkpoints(
        run.folder,
        parts.snapshot,
        kept=run.training.checkpoints_kept,
        others=remembering(advantage=parts.advantage),
        told=numbers.checkpointed,
        scores=partial(grades.scores, run.folder),
    )


def _caught_up(
    run: Run, parts: Parts, *, records: Records, checkpoints: Checkpoints, journal: Journal
) -> Standing:
    """Where the trainer before this one stood: its checkpoint, and the records since."""
    recovery = Recovery(run, records, advantage=parts.advantage)
    standing = recovery.load(parts.team, checkpoints)
    for replayed in recovery.replay(parts.optimizer, standing):
        standing = replayed.standing
        if standing.batch > journal.last_batch:
            journal.write(step_line(replayed.step, NOTHING_REFUSED) | standing._asdict())
    return standing


def _pool(run: Run, bus: Bus, parts: Parts, *, claimed: Claim, standing: Standing) -> Pool:
    return Pool(
        bus.groups,
        claimed.epoch,
        cargo=parts.team,
        lag=run.lag,
        advantage=parts.advantage,
        per_step=run.groups.per_step,
        step=standing.step,
        steps={**bus.versions.steps(), standing.version: standing.step},
        streams=coefficients(run.objective),
        treatment=treatment(run),
    )


def _evaluations(run: Run, bus: Bus, epoch: int) -> Evaluations | None:
    if run.evaluation is None or not (every := meanwhile(run)):
        return None
    return Evaluations(bus, run.folder, epoch, every=every, members=run.evaluation.members)
