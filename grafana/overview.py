"""The overview: four questions, each with its figures and its curves."""

from __future__ import annotations

from grafana.panels import Board, Panel, Query, Row
from grafana.parts import RUN_VARIABLE
from grafana.queries import RUN, gauge, idle, rate, share

BOARD = Board(
    name="overview",
    title="Sluice: overview",
    text="Are tokens flowing, how old are they, is it learning, what is it waiting for?",
    variables=(RUN_VARIABLE,),
    content=(
        Row("Are tokens flowing?"),
        Panel(
            "Generated",
            "Tokens that all engines delivered or saved, per second.",
            (Query(rate("sluice_inference_tokens_total", of=RUN), "tokens/s"),),
            unit="short",
            see="A stage stands still",
            kind="stat",
            width=4,
            height=6,
            limits=(1e-9,),
            falling=True,
        ),
        Panel(
            "Trained",
            "Tokens inside the loss of steps that were taken, per second.",
            (Query(rate("sluice_training_tokens_total", of=RUN), "tokens/s"),),
            unit="short",
            see="A stage stands still",
            kind="stat",
            width=4,
            height=6,
            limits=(1e-9,),
            falling=True,
        ),
        Panel(
            "Steps",
            "Optimizer steps made, of those that the run is to make.",
            (
                Query(gauge("sluice_run_steps", of=RUN), "made"),
                Query(gauge("sluice_run_target_steps", of=RUN), "of"),
            ),
            unit="short",
            see="Reading the dashboards",
            kind="stat",
            width=4,
            height=6,
        ),
        Panel(
            "Tokens per second",
            "Both ends of the stream. Generated runs ahead of trained by what is refused or "
            "teaches nothing; a gap that widens is waste.",
            (
                Query(rate("sluice_inference_tokens_total", of=RUN), "generated"),
                Query(rate("sluice_training_tokens_total", of=RUN), "trained"),
            ),
            unit="short",
            see="A stage stands still",
            width=12,
            height=6,
        ),
        Row("How old are they?"),
        Panel(
            "Lag at training",
            "Mean lag of the tokens of the last step, in optimizer steps.",
            (Query(gauge("sluice_training_lag_mean_steps", of=RUN, act="max"), "steps"),),
            unit="short",
            see="Lag at its bound",
            kind="stat",
            width=4,
            height=6,
        ),
        Panel(
            "Refused",
            "Members refused whole, of all that were refused or trained.",
            (
                Query(
                    share(
                        rate("sluice_training_refused_members_total", of=RUN),
                        f"{rate('sluice_training_refused_members_total', of=RUN)} + "
                        f"{rate('sluice_training_members_total', of=RUN)}",
                    ),
                    "of members",
                ),
            ),
            unit="percentunit",
            see="Many refusals",
            kind="stat",
            width=4,
            height=6,
            limits=(0.05, 0.2),
        ),
        Panel(
            "Lag along the stream",
            "Mean lag of the oldest tokens of groups in flight and of whole groups that wait, and "
            "of all tokens at training; above the limit a token is refused.",
            (
                Query(gauge("sluice_run_lag_mean_steps", by="way", of=RUN), "{{way}}"),
                Query(gauge("sluice_training_lag_mean_steps", of=RUN, act="max"), "training"),
                Query(gauge("sluice_run_lag_limit_steps", of=RUN, act="max"), "limit"),
            ),
            unit="short",
            see="Lag at its bound",
            width=16,
            height=6,
        ),
        Row("Is it learning?"),
        Panel(
            "Reward",
            "Mean reward of the groups of the last step.",
            (Query(gauge("sluice_training_reward", of=RUN, act="max"), "reward"),),
            unit="short",
            see="Reward falls or collapses",
            kind="stat",
            width=4,
            height=6,
            least=None,
        ),
        Panel(
            "Mismatch",
            "k3 between the trainer's log-probs and the engines', in nats: near 0 both compute the "
            "same policy.",
            (Query(gauge("sluice_training_mismatch_k3_nats", of=RUN, act="max"), "nats"),),
            unit="short",
            see="Mismatch grows",
            kind="stat",
            width=4,
            height=6,
            limits=(0.01, 0.1),
        ),
        Panel(
            "Reward by step",
            "Mean reward of each step's own groups, before the step.",
            (Query(gauge("sluice_training_reward", of=RUN, act="max"), "reward"),),
            unit="short",
            see="Reward falls or collapses",
            width=8,
            height=6,
            least=None,
        ),
        Panel(
            "Length",
            "Mean tokens of the members of each step. Longer answers without more reward are a "
            "sign that length itself is rewarded.",
            (Query(gauge("sluice_training_completion_tokens", of=RUN, act="max"), "tokens"),),
            unit="short",
            see="Answers grow longer",
            width=8,
            height=6,
        ),
        Row("What is it waiting for?"),
        Panel(
            "Alerts",
            "Alerts that fire now, of all runs of this Prometheus.",
            (Query('count(ALERTS{alertstate="firing"}) or vector(0)', "firing"),),
            unit="short",
            see="Reading the dashboards",
            kind="stat",
            width=4,
            height=7,
            limits=(1,),
        ),
        Panel(
            "Where the groups are",
            "Groups alive by place: to be generated, to be scored (open), whole and waiting for "
            "the trainer. What is full stands before the bottleneck.",
            (
                Query(gauge("sluice_run_place_groups", by="place", of=RUN), "{{place}}"),
                Query(gauge("sluice_run_window_groups", of=RUN), "the window"),
            ),
            unit="short",
            see="A stage stands still",
            width=10,
            height=7,
        ),
        Panel(
            "Time spent waiting",
            "Share of each service's time that its processes were idle, by what they waited for. "
            "Prompting waits for the window: that is as it should be.",
            tuple(
                Query(idle(service, of=RUN), f"{service}: {{{{cause}}}}")
                for service in ("training", "inference", "scoring", "prompting")
            ),
            unit="percentunit",
            see="Training starves",
            width=10,
            height=7,
            most=1,
        ),
        Panel(
            "Processes",
            "Processes by their beats; a silent one will be replaced, its work is given to others.",
            (
                Query(
                    gauge("sluice_run_processes", by="service, state", of=RUN) + " > 0",
                    "{{service}} {{state}}",
                ),
            ),
            unit="short",
            see="A process is silent",
            kind="bargauge",
            width=24,
            height=6,
        ),
    ),
)
