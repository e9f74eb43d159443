"""The dashboard of the ledger."""

from __future__ import annotations

from grafana.panels import Board, Panel, Query
from grafana.parts import RUN_VARIABLE
from grafana.queries import RUN, gauge, latest, rate

FATE_TOKENS = "sluice_run_fate_tokens_total"


def largest_first(expr: str) -> str:
    """For bars, which stand in the order of the answer; without what is 0."""
    return f"sort_desc({expr} > 0)"


BOARD = Board(
    name="ledger",
    title="Sluice: ledger",
    text="What became of every token that was generated, and what that cost.",
    variables=(RUN_VARIABLE,),
    content=(
        Panel(
            "Out of balance",
            "Tokens by which the sum of all fates differs from what was generated. Always 0.",
            (Query(latest("sluice_run_unbalanced_tokens"), "tokens"),),
            unit="short",
            see="The ledger is out of balance",
            kind="stat",
            width=4,
            height=6,
            limits=(1,),
        ),
        Panel(
            "Without a fate yet",
            "Tokens delivered or saved whose group is alive.",
            (Query(latest("sluice_run_in_flight_tokens"), "tokens"),),
            unit="short",
            see="The ledger is out of balance",
            kind="stat",
            width=4,
            height=6,
        ),
        Panel(
            "Dead letters",
            "Members and groups that were given up, since the run began.",
            (Query(latest("sluice_run_dead_letters_total"), "letters"),),
            unit="short",
            see="Dead letters",
            kind="stat",
            width=4,
            height=6,
            limits=(1,),
        ),
        Panel(
            "Leases",
            "Tickets taken and not settled, by service.",
            (Query(gauge("sluice_run_leases", by="service", of=RUN), "{{service}}"),),
            unit="short",
            see="A process is silent",
            width=6,
            height=6,
        ),
        Panel(
            "Redis",
            "Memory in use, and its limit if there is one. From 75 % on nothing is admitted.",
            (
                Query(gauge("sluice_run_redis_used_bytes", of=RUN, act="max"), "used"),
                Query(
                    gauge("sluice_run_redis_limit_bytes", of=RUN, act="max") + " > 0",
                    "limit",
                    bound=True,
                ),
            ),
            unit="bytes",
            see="Redis memory",
            width=6,
            height=6,
        ),
        Panel(
            "Tokens by fate",
            "How tokens ended, per second.",
            (Query(rate(FATE_TOKENS, by="fate", of=RUN) + " > 0", "{{fate}}"),),
            unit="short",
            see="Many refusals",
            width=12,
            stacked=True,
        ),
        Panel(
            "Both sides",
            "Tokens that entered the ledger, and tokens that got a fate, per second.",
            (
                Query(rate("sluice_run_generated_tokens_total", of=RUN), "generated"),
                Query(rate(FATE_TOKENS, of=RUN), "ended"),
            ),
            unit="short",
            see="The ledger is out of balance",
            width=12,
        ),
        Panel(
            "All tokens by fate",
            "Since the run began.",
            (Query(largest_first(latest(FATE_TOKENS, by="fate")), "{{fate}}"),),
            unit="short",
            see="Many refusals",
            kind="bargauge",
            height=6,
        ),
        Panel(
            "All members by fate",
            "Since the run began.",
            (
                Query(
                    largest_first(latest("sluice_run_fate_members_total", by="fate")),
                    "{{fate}}",
                ),
            ),
            unit="short",
            see="Many refusals",
            kind="bargauge",
            height=6,
        ),
        Panel(
            "Core- and GPU-seconds by fate",
            "What generating them cost, since the run began: tokens of a fate times what a token "
            "costs on average.",
            (
                Query(
                    largest_first(
                        latest("sluice_run_fate_device_seconds_total", by="fate, device")
                    ),
                    "{{fate}}, {{device}}",
                ),
            ),
            unit="s",
            see="Many refusals",
            kind="bargauge",
            height=6,
        ),
        Panel(
            "Wasted",
            "Core- and GPU-seconds that taught nothing, of all of the last ten minutes.",
            (
                Query(
                    "1 - sum(increase(sluice_run_fate_device_seconds_total"
                    f'{{fate="trained",{RUN}}}[10m])) / '
                    f"sum(increase(sluice_run_fate_device_seconds_total{{{RUN}}}[10m]))",
                    "wasted",
                ),
            ),
            unit="percentunit",
            see="Many refusals",
            width=12,
            limits=(0.3, 0.6),
            most=1,
        ),
        Panel(
            "Devices at work",
            "Cores and GPUs that forward passes keep busy, by engine.",
            (
                Query(
                    rate("sluice_inference_device_seconds_total", by="instance, device", of=RUN)
                    + " > 0",
                    "{{instance}}, {{device}}",
                ),
            ),
            unit="short",
            see="Engines starve",
            width=12,
        ),
    ),
)
