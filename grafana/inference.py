"""The dashboard of the engines."""

from __future__ import annotations

from grafana.panels import Board, Panel, Query, Row
from grafana.parts import RUN_VARIABLE, instances, times
from grafana.queries import RUN, each, gauge, quantile, rate, share

TOKENS = "sluice_inference_tokens_total"
GAP = "sluice_inference_canary_gap_nats"
FLIPS = rate("sluice_inference_flips_total")

BOARD = Board(
    name="inference",
    title="Sluice: inference",
    text="The engines: what they sample, what they wait for, and what new weights cost them.",
    variables=(RUN_VARIABLE, instances(TOKENS)),
    content=(
        Row("Work"),
        Panel(
            "Tokens per second",
            "Tokens delivered or saved, by engine.",
            (Query(rate(TOKENS, by="instance"), "{{instance}}"),),
            unit="short",
            see="A stage stands still",
            stacked=True,
        ),
        Panel(
            "Members per second",
            "Members delivered, by engine.",
            (Query(rate("sluice_inference_members_total", by="instance"), "{{instance}}"),),
            unit="short",
            see="A stage stands still",
            stacked=True,
        ),
        Panel(
            "Sequences",
            "Sequences being decoded, and those taken that wait for a slot.",
            (
                Query(gauge("sluice_inference_running_sequences"), "running"),
                Query(gauge("sluice_inference_waiting_sequences"), "waiting"),
            ),
            unit="short",
            see="Engines starve",
        ),
        Panel(
            "KV in use",
            "Keys and values in use, of all that there may be, by engine.",
            (Query(gauge("sluice_inference_kv_ratio", by="instance"), "{{instance}}"),),
            unit="percentunit",
            see="Engines starve",
            most=1,
        ),
        *times("inference", "forward passes", see="Engines starve"),
        Panel(
            "Length",
            "Tokens of delivered members: the median, and what 95 of 100 do not exceed.",
            (
                Query(quantile(0.5, "sluice_inference_completion_tokens"), "median"),
                Query(quantile(0.95, "sluice_inference_completion_tokens"), "95 %"),
            ),
            unit="short",
            see="Answers grow longer",
        ),
        Panel(
            "Cut off",
            "Members that reached their limit of tokens, of those delivered.",
            (
                Query(
                    share(
                        rate("sluice_inference_truncated_members_total"),
                        rate("sluice_inference_members_total"),
                    ),
                    "cut off",
                ),
            ),
            unit="percentunit",
            see="Answers are cut off",
            limits=(0.05, 0.2),
            reach=0.25,
        ),
        Panel(
            "Lost",
            "Tokens sampled for nothing: their group ended meanwhile, or a flip was undone.",
            (
                Query(
                    share(
                        rate("sluice_inference_lost_tokens_total"),
                        f"{rate('sluice_inference_lost_tokens_total')} + {rate(TOKENS)}",
                    ),
                    "lost",
                ),
            ),
            unit="percentunit",
            see="Many refusals",
            limits=(0.05, 0.2),
            reach=0.25,
        ),
        Row("Weights"),
        Panel(
            "Versions behind",
            "How many versions the engine's weights are behind what was the newest ten seconds "
            "ago: 0, unless the engine takes longer than that.",
            (
                Query(
                    f"clamp_min(max(sluice_run_version{{{RUN}}} offset 10s) - on() group_right() "
                    f"{gauge('sluice_inference_version', by='instance')}, 0)",
                    "{{instance}}",
                ),
            ),
            unit="short",
            see="Lag at its bound",
            reach=2,
        ),
        Panel(
            "Flips",
            "Versions adopted, those undone, and those that could not be staged, per second.",
            (
                Query(FLIPS, "flips"),
                Query(rate("sluice_inference_wrong_flips_total"), "undone"),
                Query(rate("sluice_inference_staging_errors_total"), "not staged"),
            ),
            unit="short",
            see="Weights cannot be staged",
        ),
        Panel(
            "Canary",
            "How far each engine's log-probs of a short fixed prompt are from the trainer's: the "
            "largest difference, and the mean. Beyond the limit a flip is undone.",
            (
                Query(gauge(f'{GAP}{{of="largest"}}', by="instance"), "{{instance}}, largest"),
                Query(gauge(f'{GAP}{{of="mean"}}', by="instance"), "{{instance}}, mean"),
                Query(gauge("sluice_inference_canary_limit_nats", act="min"), "limit", bound=True),
            ),
            unit="sci",
            see="The canary's gap",
        ),
        Panel(
            "Since the canary",
            "How many versions each engine's weights are above those that it was last examined at.",
            (
                Query(
                    f"{gauge('sluice_inference_version', by='instance')} - on(instance) "
                    f"{gauge('sluice_inference_canary_version', by='instance')}",
                    "{{instance}}",
                ),
            ),
            unit="short",
            see="The canary's gap",
            reach=10,
        ),
        Panel(
            "Staging a version",
            "Seconds from the first byte until all is verified, beside the decoding; and those of "
            "them in which it was verified.",
            (
                Query(each(rate("sluice_inference_stage_seconds_total"), FLIPS), "staged in"),
                Query(each(rate("sluice_inference_verify_seconds_total"), FLIPS), "verified in"),
            ),
            unit="s",
            see="Weights cannot be staged",
        ),
        Panel(
            "Bytes of a version",
            "How much of a version had to travel.",
            (Query(each(rate("sluice_inference_stage_bytes_total"), FLIPS), "bytes"),),
            unit="bytes",
            see="Weights cannot be staged",
        ),
        Panel(
            "What a flip costs",
            "The flip itself; and the gap between two tokens of a sequence across a flip, less the "
            "usual gap: beside it the same at random steps, which is what chance alone shows.",
            (
                Query(each(rate("sluice_inference_flip_seconds_total"), FLIPS), "flip"),
                Query(gauge("sluice_inference_swap_pause_seconds", act="avg"), "pause"),
                Query(gauge("sluice_inference_random_pause_seconds", act="avg"), "chance"),
            ),
            unit="s",
            see="Reading the dashboards",
            least=None,
        ),
        Panel(
            "Decode step",
            "Median gap between two tokens of a sequence.",
            (Query(gauge("sluice_inference_decode_step_seconds", by="instance"), "{{instance}}"),),
            unit="s",
            see="Reading the dashboards",
        ),
        Row("Endpoint"),
        Panel(
            "Requests of others",
            "Answered or not, and why not, per second.",
            (Query(rate("sluice_inference_endpoint_requests_total", by="outcome"), "{{outcome}}"),),
            unit="short",
            see="Engines starve",
            stacked=True,
        ),
        Panel(
            "Tokens for others",
            "Tokens per second that the endpoint has told, beside the run's own.",
            (Query(rate("sluice_inference_endpoint_tokens_total", by="instance"), "{{instance}}"),),
            unit="short",
            see="Engines starve",
            stacked=True,
        ),
    ),
)
