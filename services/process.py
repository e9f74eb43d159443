"""One process of one service: the parts that all four have around their loops, put together."""

from __future__ import annotations

from importlib import import_module

from pipeline.bus.bus import Bus
from pipeline.errors import ConfigError
from pipeline.life import Life
from pipeline.metrics import Metrics
from pipeline.run import Run
from pipeline.serve import Http


def serve(service: str, run: Run, *, redis: str, instance: str, http: str) -> None:
    """Builds `services.SERVICE.service` and runs its loop until the run, or this process, is over.

    Raises ConfigError for bad input, Fenced for a trainer that was replaced.
    """
    if not redis:
        remedy = "give --redis URL or set SLUICE_REDIS, or start all with `sluice up`"
        raise ConfigError("--redis", None, rule="is needed to join a run", remedy=remedy)
    bus = Bus.connect(redis, run.name)
    bus.open(
        run.identity,
        window=run.window,
        per_step=run.groups.per_step,
        lag_max=run.lag.max,
        members=run.groups.members,
        lease_seconds=run.bus.lease_seconds,
    )
    metrics = Metrics(service)
    door = Http(metrics, http)
    life = Life(bus, service, instance, metrics=metrics, http=door.address)
    door.healthy = lambda: life.healthy
    life.start()
    try:
        part = import_module(f"services.{service}.service").build(
            run, bus, life=life, metrics=metrics
        )
        door.ready = lambda: life.healthy
        part.run()
    finally:
        life.end()
        door.close()
        bus.close()
