"""Where the parts of inference meet: the composition root of the service."""

from __future__ import annotations

from pipeline import plugins
from pipeline.bus.bus import Bus
from pipeline.families import ENGINES, TRANSPORTS
from pipeline.grades import meanwhile
from pipeline.life import Life
from pipeline.metrics import Metrics
from pipeline.protocols import Engine, Transport
from pipeline.run import Run
from services.inference.metrics import Numbers
from services.inference.service import Inference


def build(run: Run, bus: Bus, *, life: Life, metrics: Metrics) -> Inference:
    """Raises ConfigError for an engine or a model that cannot be had."""
    with life.long("model", 600):
        engine: Engine = plugins.make(
            ENGINES,
            run.inference.engine,
            run.model,
            at="inference.engine",
            boot=life.boot,
            swap=run.inference.swap,
        )
    transport: Transport = plugins.make(TRANSPORTS, run.weights, at="weights", run=run.name)
    return Inference(
        bus,
        engine,
        transport,
        life=life,
        numbers=Numbers(metrics),
        evaluate_every=meanwhile(run),
    )
