"""Where the parts of inference meet: the composition root of the service."""

from __future__ import annotations

import logging

import msgspec

from pipeline import plugins
from pipeline.bus.bus import Bus
from pipeline.errors import ConfigError
from pipeline.families import ENDPOINTS, ENGINES
from pipeline.grades import meanwhile
from pipeline.life import Life
from pipeline.messages import Sampling
from pipeline.metrics import Metrics
from pipeline.protocols import Engine
from pipeline.run import Run
from pipeline.serve import Http
from pipeline.weights.direct import check_fits
from pipeline.weights.origin import Origin
from services.inference.canary import limit_of
from services.inference.metrics import Numbers
from services.inference.openai.inbox import Inbox
from services.inference.service import Inference

log = logging.getLogger(__name__)


def build(run: Run, bus: Bus, *, life: Life, metrics: Metrics, site: Http) -> Inference:
    """Raises ConfigError for an engine or a model that cannot be had."""
    origin = Origin(run.weights, run.name, bus.url)
    transport = origin.transport()
    check_fits(run, transport)
    canary_gap = limit_of(run)
    numbers = Numbers(metrics)
    inbox = _inbox(run, site, life=life, numbers=numbers)
    with life.long("model", 600):
        engine: Engine = plugins.make(
            ENGINES,
            run.inference.engine,
            run.model,
            at="inference.engine",
            boot=life.boot,
            swap=run.inference.swap,
            origin=origin,
            canary_gap=canary_gap,
            sampling=msgspec.convert(run.sampling, Sampling, from_attributes=True),
        )
    _check_places(inbox.places, engine.slots)
    return Inference(
        bus,
        engine,
        transport,
        life=life,
        numbers=numbers,
        evaluate_every=meanwhile(run),
        canary_every=run.inference.canary_every,
        canary_gap=canary_gap,
        inbox=inbox,
    )


def _inbox(run: Run, site: Http, *, life: Life, numbers: Numbers) -> Inbox:
    """Where others' requests come in; the site answers them from now on, if there are to be any."""
    inbox = Inbox(run.inference.endpoint)
    if inbox.places:
        build_endpoint = plugins.find(ENDPOINTS, "openai", "inference.endpoint")
        site.beside = build_endpoint(run, inbox, life=life, numbers=numbers)
        log.info(
            "others may sample %d sequences at once at http://%s/v1", inbox.places, site.address
        )
    return inbox


def _check_places(places: int, slots: int) -> None:
    """Raises ConfigError where the run could be left without a slot of its own."""
    if places > slots // 2:
        rule = f"is more than half of the engine's {slots} slots; the run has the other half"
        raise ConfigError("inference.endpoint", places, rule=rule, remedy="lower it")
