"""Where the parts of scoring meet: the composition root of the service."""

from __future__ import annotations

from pipeline.bus.bus import Bus
from pipeline.life import Life
from pipeline.metrics import Metrics
from pipeline.model.tokens import Tokenizer
from pipeline.run import Run
from services.scoring.drift import Golden
from services.scoring.ensemble import make_ensemble
from services.scoring.metrics import Numbers
from services.scoring.process import START_SECONDS
from services.scoring.service import Scoring


def build(run: Run, bus: Bus, life: Life, metrics: Metrics) -> Scoring:
    """Raises ConfigError for a scorer that cannot be had, or whose golden set cannot be read."""
    numbers = Numbers(metrics)
    ensemble = make_ensemble(run.scoring, numbers=numbers, policy=run.model.path)
    golden = Golden(ensemble, numbers)
    with life.long("tokenizer to load", START_SECONDS):
        decode = Tokenizer(run.model.path).decode
    return Scoring(bus, life, ensemble, golden=golden, decode=decode, numbers=numbers)
