"""A scoring process to be killed: URL, run, instance and [scoring] on its command line."""

import json
import sys

import msgspec
from planting import text_of

from pipeline.bus.bus import Bus
from pipeline.life import Life
from pipeline.logs import configure_logs
from pipeline.metrics import Metrics
from pipeline.run import Scoring as ScoringKeys
from pipeline.serve import Http
from services.scoring.drift import Golden
from services.scoring.ensemble import make_ensemble
from services.scoring.metrics import Numbers
from services.scoring.service import Scoring


def main(url: str, run: str, instance: str, scoring: str) -> None:
    configure_logs()
    metrics = Metrics("scoring")
    numbers = Numbers(metrics)
    bus = Bus.connect(url, run)
    site = Http(metrics)
    life = Life(bus, "scoring", instance, metrics=metrics, http=site.address)
    site.healthy = lambda: life.healthy
    life.start()
    keys = msgspec.convert({"workers": 2, **json.loads(scoring)}, ScoringKeys)
    ensemble = make_ensemble(keys, numbers=numbers)
    golden = Golden(ensemble, numbers)
    Scoring(bus, life, ensemble, golden=golden, decode=text_of, numbers=numbers).run()
    assert "torch" not in sys.modules, "scoring needs no torch"
    life.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
