"""The dashboard of the scorers."""

from __future__ import annotations

from grafana.panels import Board, Panel, Query
from grafana.parts import RUN_VARIABLE, instances, times
from grafana.queries import RUN, each, gauge, rate, share

ERRORS = "sluice_scoring_errors_total"
MEMBERS = rate("sluice_scoring_members_total")


def up_to(bound: str) -> str:
    """Members per second whose reward was at most so much."""
    return rate(f'sluice_scoring_reward_bucket{{le="{bound}"}}')


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
            (Query(each(rate("sluice_scoring_grading_seconds_total"), MEMBERS), "seconds"),),
            unit="s",
            see="A stage stands still",
        ),
        Panel(
            "Errors",
            "Members without a reward, of those scored; a fault is never a reward of 0.",
            (
                Query(share(rate(ERRORS), MEMBERS), "in all"),
                Query(f"{share(rate(ERRORS, by='reason'), MEMBERS)} > 0", "{{reason}}"),
            ),
            unit="percentunit",
            see="Scorer errors",
            limits=(0.005, 0.02),
            reach=0.03,
        ),
        Panel(
            "Workers replaced",
            "Workers that hung or died and were started again, since the process began.",
            (Query(gauge("sluice_scoring_replaced_workers_total", by="instance"), "{{instance}}"),),
            unit="short",
            see="Scorer errors",
            reach=1,
        ),
        Panel(
            "Reward",
            "Shares of the members scored, trained or not, by their reward.",
            (
                Query(f"1 - {share(up_to('0.0'), up_to('+Inf'))}", "above 0"),
                Query(f"1 - {share(up_to('0.99'), up_to('+Inf'))}", "above 0.99"),
            ),
            unit="percentunit",
            see="Reward falls or collapses",
            most=1,
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
