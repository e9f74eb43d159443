"""One process of one service: the parts that all four have around their loops, put together."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import re
from contextlib import closing
from importlib import import_module
from typing import Any

from pipeline.bus.bus import Bus
from pipeline.errors import ConfigError
from pipeline.fit import check_memory, check_rewards
from pipeline.life import Life
from pipeline.logs import LogFormat, configure_logs, log_version
from pipeline.metrics import Metrics
from pipeline.model.likeness import likeness, room
from pipeline.run import Run
from pipeline.serve import Http, needs
from pipeline.weights.size import version_bytes

log = logging.getLogger(__name__)

IMPORT_SECONDS = 300.0

EXTRAS = {"prompting": "text", "inference": "model", "scoring": "text", "training": "model"}


def serve(
    service: str,
    run: Run,
    *,
    redis: str,
    instance: str,
    http: str,
    log_format: LogFormat = LogFormat.TEXT,
) -> None:
    """Runs what `services.SERVICE.build` makes until the run, or this process, is over.

    Raises ConfigError for bad input, Fenced for a trainer that was replaced.
    """
    configure_logs(log_format, run=run.name, service=service, instance=instance)
    if not redis:
        remedy = "give --redis URL or set SLUICE_REDIS, or start all with `sluice up`"
        raise ConfigError("--redis", None, rule="is needed to join a run", remedy=remedy)
    _check_name(instance)
    if service == "training" and os.environ.get("RANK", "0") != "0":  # torchrun's
        _assist(run, redis)
        return
    bus = Bus.connect(redis, run.name)
    open_alike(service, bus, run)
    metrics = Metrics(service, run=run.name, instance=instance)
    site = Http(metrics, http)
    life = Life(bus, service, instance, metrics=metrics, http=site.address)
    site.healthy = lambda: life.healthy
    log_version(lambda: life.version)
    life.start()
    try:
        part = _build(service, run, bus, life=life, metrics=metrics, site=site)
        site.trouble = lambda: life.trouble
        log.info("serving /metrics at http://%s/metrics", site.address)
        part.run()
    finally:
        life.end()
        site.close()
        bus.close()


def open_run(bus: Bus, run: Run, **more: str) -> None:
    """Create the run on the bus, or join one that is equal; raises ConfigError for what differs.

    `more` is added to the identity: what only one of the services knows.
    """
    check_rewards(run)
    bus.open(
        run.identity | more,
        window=run.window,
        per_step=run.groups.per_step,
        lag_max=run.lag.max,
        members=run.groups.members,
        lease_seconds=run.bus.lease_seconds,
        group_deadline_seconds=run.groups.deadline_seconds,
        enough=run.groups.enough or run.groups.members,
    )
    limit_bytes = bus.snapshot().server.limit_bytes
    if said := check_memory(run, limit_bytes, version_bytes=version_bytes(run)):
        log.warning(said)


def open_alike(service: str, bus: Bus, run: Run) -> None:
    """As `open_run`; raises it too, with both sides' values, where this machine's model is not the
    run's.
    """
    told = likeness(run) | (room(run) if service == "inference" else {})
    try:
        open_run(bus, run, **told)
    except ConfigError as exc:
        if exc.where not in told:
            raise
        where = f"{exc.where} of {run.model.path} on {os.uname().nodename}"
        remedy = "give all machines of the run the same, or choose another run name"
        raise ConfigError(where, exc.value, rule=exc.rule, remedy=remedy) from exc


def _check_name(instance: str) -> None:
    if not re.fullmatch(r"[^\s|]{1,128}", instance) or not instance.isprintable():
        remedy = "use up to 128 letters, digits and signs, but no space and no '|'"
        raise ConfigError("--instance", instance, rule="is no name of a process", remedy=remedy)


def _assist(run: Run, redis: str) -> None:
    """A rank that follows rank 0, which alone is a process of the run."""
    with (
        needs(EXTRAS["training"], what="sluice training"),
        closing(Bus.connect(redis, run.name)) as bus,
    ):
        import_module("services.training.parts").assist(run, bus.groups.fetch)


def _build(service: str, run: Run, bus: Bus, **around: object) -> Any:
    """Of what is around its loop a service is given what it has a parameter for."""
    life = around["life"]
    assert isinstance(life, Life)
    with needs(EXTRAS[service], what=f"sluice {service}"):
        with life.long("its libraries", IMPORT_SECONDS):  # torch from a cold disk, for one
            module = _imported(f"services.{service}.build")
        names = inspect.signature(module.build).parameters
        return module.build(run, bus, **{n: part for n, part in around.items() if n in names})


def _imported(name: str) -> Any:
    """What torch makes as it is imported stays: to look there for garbage takes an eighth of it."""
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.enable()
