"""What several dashboards have: variables, where the groups are, where a service's seconds go."""

from __future__ import annotations

from grafana.panels import Panel, Query, Variable
from grafana.queries import RUN, activity, gauge, idle

PLACES = {"prompts": "to be generated", "open": "to be scored", "groups": "ready for a step"}
RUN_VARIABLE = Variable("run", "label_values(sluice_run_steps, run)", "Which run.")


def instances(metric: str) -> Variable:
    """The processes of one service."""
    query = f'label_values({metric}{{run=~"$run"}}, instance)'
    return Variable("instance", query, "Which of its processes.", many=True)


def places(title: str, *more: Query) -> Panel:
    """Where the groups of the window are; `more` has further bounds."""
    return Panel(
        title,
        "Groups alive, by place; together they are at most the window. What is full stands before "
        "the bottleneck.",
        (
            *(
                Query(
                    gauge(f'sluice_run_place_groups{{place="{place}"}}', of=RUN), f"{place}: {what}"
                )
                for place, what in PLACES.items()
            ),
            Query(gauge("sluice_run_window_groups", of=RUN), "the window", bound=True),
            *more,
        ),
        unit="short",
        see="A stage stands still",
        width=12,
        stacked=True,
    )


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
