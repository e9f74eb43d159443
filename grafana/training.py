"""The dashboard of the trainer."""

from __future__ import annotations

from grafana.panels import Board, Panel, Query, Row
from grafana.parts import RUN_VARIABLE, instances, times
from grafana.queries import PROCESS, RUN, each, gauge, latest, rate, share

TOKENS = rate("sluice_training_tokens_total")
MEMBERS = rate("sluice_training_members_total")
REFUSED = rate("sluice_training_refused_members_total")
UNTRAINED = rate("sluice_training_refused_tokens_total")
WALL = rate("sluice_training_wall_seconds_total")
STEPS = rate("sluice_training_steps_total")


def last_step(name: str) -> str:
    """A number of the last step; there is one trainer."""
    return gauge(f"sluice_training_{name}", act="max")


def by_lag(name: str) -> str:
    """The same by the lag of its tokens; no line where the last step had none of it."""
    return gauge(f"sluice_training_{name}", by="steps", act="max")


def by_reason(refused: str, whole: str) -> tuple[Query, Query]:
    """The share of all that came; and of the reasons those that count: a legend holds no more."""
    common = f"topk(5, {share(rate(refused, by='reason'), whole)} > 0)"
    return Query(share(rate(refused), whole), "in all"), Query(common, "{{reason}}")


BOARD = Board(
    name="training",
    title="Sluice: training",
    text="The trainer: what it learns, how old that is, what it refuses and what it waits for.",
    variables=(RUN_VARIABLE, instances("sluice_training_steps_total")),
    content=(
        Row("Learning"),
        Panel(
            "Reward",
            "Mean reward of each step's groups.",
            (Query(last_step("reward"), "reward"),),
            unit="short",
            see="Reward falls or collapses",
            least=None,
        ),
        Panel(
            "Held-out prompts",
            "Of the last evaluation: mean outcome of samples and of greedy answers, and the share"
            " of prompts that any sample got right.",
            (Query(gauge("sluice_training_held_out_ratio", by="kind", act="max"), "{{kind}}"),),
            unit="percentunit",
            see="Reward falls or collapses",
        ),
        Panel(
            "Evaluation",
            "Held-out groups that have no end yet; and seconds since one was admitted or ended.",
            (
                Query(gauge("sluice_run_evaluation_left_groups", act="max"), "groups left"),
                Query(gauge("sluice_run_evaluation_idle_seconds", act="max"), "seconds idle"),
            ),
            unit="short",
            see="An evaluation stands still",
            reach=1,
        ),
        Panel(
            "Entropy",
            "Mean entropy in nats where tokens were drawn. At 0 the policy has nothing to explore.",
            (Query(last_step("entropy_nats"), "nats"),),
            unit="short",
            see="Reward falls or collapses",
        ),
        Panel(
            "Imitation and distillation",
            "Mean -log p of the tokens that were imitated, and divergence from the teacher: both "
            "fall, where there are any.",
            (
                Query(last_step("imitation_nats"), "imitation"),
                Query(last_step("distillation_nats"), "distillation"),
            ),
            unit="short",
            see="Reading the dashboards",
            least=None,
            reach=1,
        ),
        Panel(
            "KL to the reference",
            "Mean of the term `objective.kl` over the last step's tokens, coefficient and all; 0 "
            "where there is none.",
            (Query(last_step("kl_term_nats"), "KL term"),),
            unit="sci",
            see="Reading the dashboards",
            least=None,
            reach=0.001,
        ),
        Panel(
            "Tokens beside the rewards'",
            "Tokens of examples that were imitated, and of completions that a teacher has judged.",
            (
                Query(rate("sluice_training_imitated_tokens_total"), "imitated/s"),
                Query(rate("sluice_training_distilled_tokens_total"), "distilled/s"),
            ),
            unit="short",
            see="Reading the dashboards",
            reach=1,
        ),
        Panel(
            "Gradient norm",
            "Before it was clipped; beside it the steps that were skipped, per second.",
            (
                Query(last_step("grad_norm"), "norm"),
                Query(rate("sluice_training_skipped_steps_total"), "skipped steps/s"),
            ),
            unit="short",
            see="Steps are skipped",
        ),
        Panel(
            "Length",
            "Mean tokens of each step's members.",
            (Query(last_step("completion_tokens"), "tokens"),),
            unit="short",
            see="Answers grow longer",
        ),
        Panel(
            "Least share",
            "Share of the trained members over share of the sampled ones, of the task or length for"
            " which that is least. At 1 all are trained alike; no line: too little was counted.",
            (Query(gauge("sluice_training_least_share_ratio", by="by", act="min"), "{{by}}"),),
            unit="percentunit",
            see="A task or a length starves",
        ),
        Panel(
            "Groups without signal",
            "Groups whose outcomes were all alike, of those judged.",
            (
                Query(
                    share(
                        rate("sluice_training_zero_signal_groups_total"),
                        f"{rate('sluice_training_zero_signal_groups_total')} + "
                        f"{rate('sluice_training_groups_total')}",
                    ),
                    "without signal",
                ),
            ),
            unit="percentunit",
            see="Groups without signal",
            limits=(0.5, 0.7),
            most=1,
        ),
        Panel(
            "Learning rate",
            "Of each step.",
            (Query(last_step("learning_rate"), "rate"),),
            unit="sci",
            see="Reading the dashboards",
        ),
        Row("Age and trust"),
        Panel(
            "Lag",
            "Of the last step's tokens, and the limit.",
            (
                Query(last_step("lag_mean_steps"), "mean"),
                Query(last_step("lag_p95_steps"), "95 %"),
                Query(last_step("lag_max_steps"), "largest"),
                Query(gauge("sluice_run_lag_limit_steps", of=RUN, act="max"), "limit", bound=True),
            ),
            unit="short",
            see="Lag at its bound",
        ),
        Panel(
            "Oldest on the way",
            "Lag of the oldest token in flight, and of whole groups that wait for the trainer.",
            (
                Query(gauge("sluice_run_lag_max_steps", by="way", of=RUN), "{{way}}"),
                Query(gauge("sluice_run_lag_limit_steps", of=RUN, act="max"), "limit", bound=True),
            ),
            unit="short",
            see="Lag at its bound",
        ),
        Panel(
            "Tokens by lag",
            "Tokens trained per second, by how many steps they lagged.",
            (Query(rate("sluice_training_lag_tokens_total", by="steps") + " > 0", "{{steps}}"),),
            unit="short",
            see="Lag at its bound",
            stacked=True,
        ),
        Panel(
            "Members of several versions",
            "Members trained whose tokens were sampled by more than one version, of all.",
            (Query(share(rate("sluice_training_spanning_members_total"), MEMBERS), "spanning"),),
            unit="percentunit",
            see="Reading the dashboards",
            most=1,
        ),
        Panel(
            "Mismatch",
            "k3 between the trainer's log-probs and the engines', in nats.",
            (Query(last_step("mismatch_k3_nats"), "k3"),),
            unit="sci",
            see="Mismatch grows",
            limits=(0.01, 0.1),
        ),
        Panel(
            "Engines and drift",
            "The mismatch by its causes. Engines: of tokens that the very weights being trained "
            "have sampled. Drift: what older ones have besides, since the policy has moved.",
            (
                Query(last_step("engine_mismatch_k3_nats"), "engines"),
                Query(last_step("drift_k3_nats"), "drift"),
            ),
            unit="sci",
            see="Mismatch grows",
        ),
        Panel(
            "Effective sample size",
            "Of the last step's tokens, of their number: 1 where engine and trainer agree.",
            (Query(last_step("ess_ratio"), "ESS"),),
            unit="percentunit",
            see="Mismatch grows",
            limits=(0.5, 0.8),
            falling=True,
            most=1,
        ),
        Panel(
            "Largest gap",
            "Largest |log r| of a token of the last step, in nats.",
            (
                Query(last_step("log_ratio_max_nats"), "of all"),
                Query(last_step("engine_log_ratio_max_nats"), "of lag 0"),
            ),
            unit="short",
            see="Mismatch grows",
        ),
        Panel(
            "Clipped and clamped",
            "Tokens of the last step that the loss clipped, those that a correction took out, and "
            "those whose log r was clamped.",
            (
                Query(last_step("clipped_ratio"), "clipped"),
                Query(last_step("trust_masked_ratio"), "taken out"),
                Query(last_step("clamped_ratio"), "clamped"),
            ),
            unit="percentunit",
            see="Mismatch grows",
            reach=0.1,
        ),
        Panel(
            "Mismatch by lag",
            "As Mismatch, of the last step's tokens that lagged by so many steps.",
            (Query(by_lag("mismatch_k3_by_lag_nats"), "{{steps}}"),),
            unit="sci",
            see="Mismatch grows",
        ),
        Panel(
            "Drift by lag",
            "As Drift, of the last step's tokens that lagged by so many steps.",
            (Query(by_lag("drift_k3_by_lag_nats"), "{{steps}}"),),
            unit="sci",
            see="Mismatch grows",
        ),
        Panel(
            "Effective sample size by lag",
            "As Effective sample size, of the last step's tokens that lagged by so many steps.",
            (Query(by_lag("ess_by_lag_ratio"), "{{steps}}"),),
            unit="percentunit",
            see="Mismatch grows",
            most=1,
        ),
        Panel(
            "Clipped by lag",
            "Tokens that the loss clipped, of the last step's that lagged by so many steps.",
            (Query(by_lag("clipped_by_lag_ratio"), "{{steps}}"),),
            unit="percentunit",
            see="Mismatch grows",
            reach=0.1,
        ),
        Panel(
            "Taken out by lag",
            "Tokens that a correction took out, of the last step's that lagged by so many steps.",
            (Query(by_lag("trust_masked_by_lag_ratio"), "{{steps}}"),),
            unit="percentunit",
            see="Mismatch grows",
            reach=0.1,
        ),
        Row("Refusals"),
        Panel(
            "Refused members",
            "Members refused whole, of all that were refused or trained, by reason.",
            by_reason("sluice_training_refused_members_total", f"{REFUSED} + {MEMBERS}"),
            unit="percentunit",
            see="Many refusals",
            limits=(0.05, 0.2),
            reach=0.25,
        ),
        Panel(
            "Refused, by length",
            "Members refused whole since the trainer began, by the length of their completion: up "
            "to so many tokens. Long ones in front: they are too slow for `lag.max`.",
            (
                Query(
                    latest(
                        "sluice_training_refused_by_length_members_total", by="tokens", of=PROCESS
                    ),
                    "{{tokens}}",
                ),
            ),
            unit="short",
            see="Many refusals",
            kind="bargauge",
        ),
        Panel(
            "Tokens not trained",
            "Of members refused whole, or masked: their share of all tokens that came, by reason.",
            by_reason("sluice_training_refused_tokens_total", f"{UNTRAINED} + {TOKENS}"),
            unit="percentunit",
            see="Many refusals",
            reach=0.25,
        ),
        Row("Time"),
        *times("training", "a step", see="Training starves"),
        Panel(
            "A step",
            "Seconds from one step to the next, and those in which it was computed.",
            (
                Query(each(WALL, STEPS), "from step to step"),
                Query(
                    each(rate('sluice_training_loop_seconds_total{activity="busy"}'), STEPS),
                    "computing",
                ),
            ),
            unit="s",
            see="A stage stands still",
        ),
        Row("Files"),
        Panel(
            "Free disk",
            "Bytes left where the run's folder is. Step records need the cargo of every step.",
            (Query(gauge("sluice_training_disk_free_bytes", act="min"), "free"),),
            unit="bytes",
            see="The disk is full",
            width=8,
            limits=(1e9, 1e10),
            falling=True,
        ),
        Panel(
            "Lines that a sink did not take",
            "Of metrics.jsonl, which has them all, since the trainer began.",
            (Query(gauge("sluice_training_sink_missed_lines_total", by="sink"), "{{sink}}"),),
            unit="short",
            see="Reading the dashboards",
            width=8,
            reach=1,
        ),
        Panel(
            "The last checkpoint",
            "Seconds for which training waited for the one before it, and for the copy; and those"
            " in which the copy was then written, beside training.",
            (Query(gauge("sluice_training_checkpoint_seconds", by="part", act="max"), "{{part}}"),),
            unit="s",
            see="Reading the dashboards",
            width=8,
        ),
    ),
)
