"""The dashboard of prompting."""

from __future__ import annotations

from grafana.panels import Board, Panel, Query
from grafana.parts import RUN_VARIABLE, instances, places, times
from grafana.queries import RUN, gauge, rate

UNUSABLE = "sluice_prompting_unusable_groups_total"

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
        places("The window", Query(gauge("sluice_run_batch_groups", of=RUN), "a step", bound=True)),
        Panel(
            "Unusable examples",
            "Groups whose example cannot be attempted: each is a dead letter by its reason.",
            (
                Query(gauge(UNUSABLE), "in all"),
                Query(f"{gauge(UNUSABLE, by='reason')} > 0", "{{reason}}"),
            ),
            unit="short",
            see="Dead letters",
            width=12,
            reach=1,
        ),
        *times("prompting", "an admission", see="A stage stands still", width=12),
    ),
)
