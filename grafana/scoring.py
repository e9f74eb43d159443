"""The dashboard of the scorers."""

from __future__ import annotations

from grafana.panels import Board, Panel, Query
from grafana.parts import RUN_VARIABLE, instances, times
from grafana.queries import RUN, each, gauge, quantile, rate, share

BOARD = Board(
    name="scoring",
    title="Sluice: scoring",
    text="The scorers: what they grade, how long it takes, and what failed.",
    variables=(RUN_VARIABLE, instances("sluice_scoring_members_total")),
    content=(
        Panel(
            "Members per second",
            "Members that got a score, or were found to have none, by process.",
            (Query(rate("sluice_scoring_members_total", by="instance"), "{{instance}}"),),
            unit="short",
            see="A stage stands still",
            stacked=True,
        ),
        Panel(
            "Waiting",
            "Members taken and not yet graded, and groups that wait for a score.",
            (
                Query(gauge("sluice_scoring_waiting_members"), "members in hand"),
                Query(
                    gauge('sluice_run_place_groups{place="open"}', of=RUN),
                    "groups open",
                ),
            ),
            unit="short",
            see="A stage stands still",
        ),
        Panel(
            "Seconds a member",
            "How long a member is graded, from its text to its verdict, its wait for a worker too.",
            (
                Query(
                    each(
                        rate("sluice_scoring_grading_seconds_total"),
                        rate("sluice_scoring_members_total"),
                    ),
                    "seconds",
                ),
            ),
            unit="s",
            see="A stage stands still",
        ),
        Panel(
            "Errors",
            "Members without a reward, of those scored; a fault is never a reward of 0.",
            (
                Query(
                    share(
                        rate("sluice_scoring_errors_total", by="reason"),
                        rate("sluice_scoring_members_total"),
                    ),
                    "{{reason}}",
                ),
            ),
            unit="percentunit",
            see="Scorer errors",
            limits=(0.005, 0.02),
        ),
        Panel(
            "Workers replaced",
            "Workers that hung or died and were started again, since the process began.",
            (Query(gauge("sluice_scoring_replaced_workers_total", by="instance"), "{{instance}}"),),
            unit="short",
            see="Scorer errors",
        ),
        Panel(
            "Reward",
            "Of the members scored, trained or not: the median, and the middle half around it.",
            (
                Query(quantile(0.75, "sluice_scoring_reward"), "75 %"),
                Query(quantile(0.5, "sluice_scoring_reward"), "median"),
                Query(quantile(0.25, "sluice_scoring_reward"), "25 %"),
            ),
            unit="short",
            see="Reward falls or collapses",
            least=None,
        ),
        *times("scoring", "grading", see="A stage stands still", width=12),
        Panel(
            "Rewards",
            "How many members got which reward, over time.",
            (Query(rate("sluice_scoring_reward_bucket", by="le"), "{{le}}"),),
            unit="short",
            see="Reward falls or collapses",
            kind="heatmap",
            width=24,
            height=9,
        ),
    ),
)
