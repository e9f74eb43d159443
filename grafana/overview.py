"""The overview: four questions, each with its figures and its curves."""

from __future__ import annotations

from grafana.panels import Board, Panel, Query, Row
from grafana.parts import RUN_VARIABLE, places
from grafana.queries import RUN, gauge, idle, latest, rate, share

SERVICES = ("training", "inference", "scoring", "prompting")
GENERATED = rate("sluice_inference_tokens_total", of=RUN)
TRAINED = rate("sluice_training_tokens_total", of=RUN)

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
            (Query(f"{GENERATED} or vector(0)", "tokens/s"),),
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
            (Query(f"{TRAINED} or vector(0)", "tokens/s"),),
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
                Query(latest("sluice_run_steps"), "made"),
                Query(latest("sluice_run_target_steps"), "of"),
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
                Query(GENERATED, "generated"),
                Query(TRAINED, "trained"),
            ),
            unit="short",
            see="A stage stands still",
            width=12,
            height=6,
        ),
        Row("How old are they?"),
        Panel(
            "Lag at training",
            "Mean lag of the tokens of the last step, in optimizer steps, and the limit.",
            (
                Query(latest("sluice_training_lag_mean_steps"), "mean"),
                Query(latest("sluice_run_lag_limit_steps"), "limit"),
            ),
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
                Query(gauge("sluice_run_lag_limit_steps", of=RUN, act="max"), "limit", bound=True),
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
            (Query(latest("sluice_training_reward"), "last step"),),
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
            (Query(latest("sluice_training_mismatch_k3_nats"), "nats"),),
            unit="sci",
            see="Mismatch grows",
            kind="stat",
            width=4,
            height=6,
            limits=(0.01, 0.1),
        ),
        Panel(
            "Reward over time",
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
            limits=(1,),
        ),
        Panel(
            "Waiting now",
            "Share of each service's time that its processes are idle, by what they wait for, from "
            "1 % on. Prompting waits for the window: that is as it should be.",
            tuple(
                Query(f"{idle(service, of=RUN)} > 0.01", f"{service}: {{{{cause}}}}")
                for service in SERVICES
            ),
            unit="percentunit",
            see="Training starves",
            kind="bargauge",
            most=1,
        ),
        places("Where the groups are"),
        Panel(
            "Not at work",
            "Processes that are silent: they will be replaced, their work is given to others; and "
            "engines in quarantine.",
            (
                Query(
                    gauge('sluice_run_processes{state!="alive"}', by="state", of=RUN), "{{state}}"
                ),
            ),
            unit="short",
            see="A process is silent",
            kind="stat",
            width=4,
            height=6,
            limits=(1,),
        ),
        Panel(
            "Processes",
            "Processes that beat, by service.",
            (
                Query(
                    gauge('sluice_run_processes{state="alive"}', by="service", of=RUN),
                    "{{service}}",
                ),
            ),
            unit="short",
            see="A process is silent",
            kind="stat",
            height=6,
        ),
        Panel(
            "Time spent waiting",
            "Share of each service's time that its processes were idle, whatever they waited for.",
            tuple(
                Query(
                    share(
                        rate(f"sluice_{service}_idle_seconds_total", of=RUN),
                        rate(f"sluice_{service}_wall_seconds_total", of=RUN),
                    ),
                    service,
                )
                for service in SERVICES
            ),
            unit="percentunit",
            see="Training starves",
            width=12,
            height=6,
            most=1,
        ),
    ),
)
