"""The watchdog: one look at a run, what it means in sentences, and what would help. Pure.

The look itself is taken by the bus. Every view of a run (`doctor`, `top`, the panel of `up`, the
report, the alarms) shows what is said here, and judges nothing by itself.
"""

from pipeline.watch.advice import Advice, advise, beginning
from pipeline.watch.explain import explain, findings, troubles
from pipeline.watch.faults import imbalance
from pipeline.watch.finding import Finding
from pipeline.watch.look import (
    Audit,
    Evaluation,
    Leases,
    Letter,
    Places,
    Server,
    Snapshot,
    State,
    keepers,
    present,
)
from pipeline.watch.seen import (
    ENDED,
    SERVICES,
    SILENT_SECONDS,
    Seen,
    by_label,
    newest,
    processes,
    total,
)

__all__ = [
    "ENDED",
    "SERVICES",
    "SILENT_SECONDS",
    "Advice",
    "Audit",
    "Evaluation",
    "Finding",
    "Leases",
    "Letter",
    "Places",
    "Seen",
    "Server",
    "Snapshot",
    "State",
    "advise",
    "beginning",
    "by_label",
    "explain",
    "findings",
    "imbalance",
    "keepers",
    "newest",
    "present",
    "processes",
    "total",
    "troubles",
]
