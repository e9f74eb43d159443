"""Snapshots of a run made by hand: who beats, and what each says."""

from __future__ import annotations

import msgspec

from pipeline.messages import Beat
from pipeline.watch import Places, Seen, Snapshot, State

BEAT_FIELDS = {"boot", "waited_seconds", "turn_seconds", "totals", "gauges"}


def process(instance: str, waiting_for: str | None = None, **about: object) -> Seen:
    service = instance.partition("-")[0]
    said = {"boot": f"{instance}:a"} | {k: v for k, v in about.items() if k in BEAT_FIELDS}
    beat = Beat(service=service, instance=instance, waiting_for=waiting_for, **said)
    rest = {k: v for k, v in about.items() if k not in BEAT_FIELDS}
    return msgspec.structs.replace(Seen(beat=beat, age_seconds=0.4), **rest)


def look(*beats: Seen, **fields: object) -> Snapshot:
    base = Snapshot(
        state=State(),
        places=Places(),
        ledger={},
        window=12,
        per_step=4,
        lag_max=2,
        lease_seconds=15,
        beats=beats,
    )
    return msgspec.structs.replace(base, **fields)


ALL = (process("prompting-0"), process("inference-0"), process("scoring-0"), process("training-0"))
PROMPTING, INFERENCE, SCORING, TRAINING = ALL
