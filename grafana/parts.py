"""What several dashboards have: their variables, and where the seconds of a service go."""

from __future__ import annotations

from grafana.panels import Panel, Query, Variable
from grafana.queries import activity, idle

RUN_VARIABLE = Variable("run", "label_values(sluice_run_steps, run)", "Which run.")


def instances(metric: str) -> Variable:
    """The processes of one service."""
    query = f'label_values({metric}{{run=~"$run"}}, instance)'
    return Variable("instance", query, "Which of its processes.", many=True)


def times(service: str, work: str, *, see: str, width: int = 8) -> tuple[Panel, Panel]:
    """Where the seconds of its loop go, and what the idle ones were spent on."""
    return (
        Panel(
            "Where the seconds go",
            f"At work ({work}: busy), blocked on input (idle), all else (other).",
            (Query(activity(service), "{{activity}}"),),
            unit="percentunit",
            see=see,
            width=width,
            stacked=True,
            most=1,
        ),
        Panel(
            "Idle, by cause",
            "What it waits for while it has no work, as a share of its time.",
            (Query(idle(service), "{{cause}}"),),
            unit="percentunit",
            see=see,
            width=width,
            stacked=True,
            most=1,
        ),
    )
