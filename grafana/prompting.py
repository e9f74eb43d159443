"""The dashboard of prompting."""

from __future__ import annotations

from grafana.panels import Board, Panel, Query
from grafana.parts import RUN_VARIABLE, instances, times
from grafana.queries import PROCESS, RUN, gauge, rate

BOARD = Board(
    name="prompting",
    title="Sluice: prompting",
    text="Admission: how fast prompts enter the window, and what keeps them out.",
    variables=(RUN_VARIABLE, instances("sluice_prompting_groups_total")),
    content=(
        Panel(
            "Admitted",
            "Groups admitted to the window, per second.",
            (Query(rate("sluice_prompting_groups_total", by="instance"), "{{instance}}"),),
            unit="short",
            see="A stage stands still",
            width=12,
        ),
        Panel(
            "Put off",
            "Admissions put off, per second. A full window is the normal state: prompting waits "
            "for the rest. `memory` is not: Redis is three quarters full.",
            (Query(rate("sluice_prompting_refusals_total", by="reason"), "{{reason}}"),),
            unit="short",
            see="Redis memory",
            width=12,
        ),
        Panel(
            "The window",
            "Groups alive by place, and how many may be.",
            (
                Query(gauge("sluice_run_place_groups", by="place", of=RUN), "{{place}}"),
                Query(gauge("sluice_run_window_groups", of=RUN), "the window"),
                Query(gauge("sluice_run_batch_groups", of=RUN), "a step"),
            ),
            unit="short",
            see="A stage stands still",
            width=12,
        ),
        Panel(
            "Unusable examples",
            "Groups whose example cannot be attempted: each is a dead letter by its reason.",
            (
                Query(
                    "sum by (reason) (sluice_prompting_unusable_groups_total{" + PROCESS + "})",
                    "{{reason}}",
                ),
            ),
            unit="short",
            see="Dead letters",
            width=12,
        ),
        *times("prompting", "an admission", see="A stage stands still", width=12),
    ),
)
