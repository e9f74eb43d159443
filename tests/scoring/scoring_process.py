"""A scoring process to be killed: URL, run, instance and scorers on its command line."""

import json
import sys

from planting import text_of

from pipeline.bus.bus import Bus
from pipeline.life import Life
from pipeline.logs import configure_logs
from pipeline.metrics import Metrics
from pipeline.run import Scoring as ScoringKeys
from services.scoring.ensemble import make_ensemble
from services.scoring.metrics import Numbers
from services.scoring.service import Scoring


def main(url: str, run: str, instance: str, scorers: str) -> None:
    configure_logs()
    metrics = Metrics("scoring")
    numbers = Numbers(metrics)
    bus = Bus.connect(url, run)
    life = Life(bus, "scoring", instance, metrics=metrics)
    life.start()
    keys = ScoringKeys(scorers=json.loads(scorers), workers=2)
    ensemble = make_ensemble(keys, on_replaced=numbers.replaced.inc)
    Scoring(bus, life, ensemble, decode=text_of, numbers=numbers).run()
    assert "torch" not in sys.modules, "scoring needs no torch"
    life.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
