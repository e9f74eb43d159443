"""The dashboard of the scorers."""

from __future__ import annotations

from grafana.panels import Board, Panel, Query, Row
from grafana.parts import RUN_VARIABLE, instances, times
from grafana.queries import RUN, each, gauge, rate, share
from pipeline.watch.gaming import DIVERGENCE

ERRORS = "sluice_scoring_errors_total"
FAULTS = "sluice_scoring_faults_total"
GAMED = "The reward may be gamed"
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
            "Asked again",
            "Tries beyond an answer's first, of all members scored: faults of something outside.",
            (Query(share(rate("sluice_scoring_retries_total"), MEMBERS), "tries"),),
            unit="percentunit",
            see="Scorer errors",
            reach=0.03,
        ),
        Panel(
            "Faults by scorer",
            "Answers to which a scorer gave no verdict, of those scored; a shadow's cost nothing.",
            (
                Query(f"{share(rate(FAULTS), MEMBERS)} or vector(0)", "in all"),
                Query(
                    f"{share(rate(FAULTS, by='scorer, reason'), MEMBERS)} > 0",
                    "{{scorer}}: {{reason}}",
                ),
            ),
            unit="percentunit",
            see="Scorer errors",
            reach=0.03,
        ),
        Panel(
            "Verdicts by their reason",
            "Why verdicts were as they are, per second, by scorer.",
            (
                Query(
                    rate("sluice_scoring_verdicts_total", by="scorer, reason"),
                    "{{scorer}}: {{reason}}",
                ),
            ),
            unit="short",
            see="Reward falls or collapses",
            stacked=True,
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
            "Golden verdicts",
            "Golden answers with another verdict than expected, and how often one has changed.",
            (
                Query(gauge("sluice_scoring_golden_differences", by="instance"), "{{instance}}"),
                Query(gauge("sluice_scoring_golden_changes_total"), "changes"),
            ),
            unit="short",
            see="A scorer judges otherwise than it did",
            limits=(1, 1),
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
        Row("Is the reward being gamed?"),
        Panel(
            "Reward and its shadows",
            "Mean reward of each step's groups, and what scorers gave their members that only "
            "watch. An honest reward takes its shadows along.",
            (
                Query(gauge("sluice_training_reward", of=RUN, act="max"), "reward"),
                Query(
                    gauge("sluice_training_shadow_reward", by="scorer", of=RUN, act="max"),
                    "shadow {{scorer}}",
                ),
            ),
            unit="short",
            see=GAMED,
            least=None,
        ),
        Panel(
            "Reward up, shadow down",
            "Standard errors by which the reward rose and the shadow fell since the shadow was at "
            "its best, the lesser of both.",
            (
                Query(
                    gauge(
                        "sluice_training_shadow_divergence_ratio",
                        by="scorer",
                        of=RUN,
                        act="max",
                    ),
                    "{{scorer}}",
                ),
            ),
            unit="short",
            see=GAMED,
            limits=(2, DIVERGENCE),
            least=None,
            reach=DIVERGENCE,
        ),
        Panel(
            "Reward and length",
            "Correlation of the two within groups, over the last steps, and the length itself is "
            "on the overview. Near 1 longer answers pay, near -1 shorter ones.",
            (
                Query(
                    gauge("sluice_training_length_correlation_ratio", of=RUN, act="max"),
                    "correlation",
                ),
            ),
            unit="short",
            see=GAMED,
            least=-1,
            most=1,
        ),
        Panel(
            "Repeated answers",
            "Over the last steps: attempts that only repeat another at the same prompt, those "
            "of them that are not the best of the step, and answers that are one and the same to "
            "different prompts.",
            (
                Query(
                    gauge("sluice_training_repeated_ratio", by="among", of=RUN, act="max"),
                    "{{among}}",
                ),
            ),
            unit="percentunit",
            see=GAMED,
            most=1,
        ),
        Panel(
            "Entropy beside it",
            "Mean entropy in nats where tokens were drawn.",
            (Query(gauge("sluice_training_entropy_nats", of=RUN, act="max"), "nats"),),
            unit="short",
            see=GAMED,
        ),
        Panel(
            "Cut off beside it",
            "Members that reached their limit of tokens, of those delivered.",
            (
                Query(
                    share(
                        rate("sluice_inference_truncated_members_total", of=RUN),
                        rate("sluice_inference_members_total", of=RUN),
                    ),
                    "cut off",
                ),
            ),
            unit="percentunit",
            see="Answers are cut off",
            reach=0.25,
        ),
    ),
)
