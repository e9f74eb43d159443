"""Every number that is declared is counted in one place, documented, bounded, and looked at."""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from generate import SUBJECTS, declared
from prometheus_client.parser import text_string_to_metric_families
from tree import ROOT, modules

from grafana.build import dashboards
from pipeline.ledger import FATES, FLAWS, GENERATED, Sum
from pipeline.messages import Beat, Completion, Score, Span
from pipeline.metrics import Metrics
from pipeline.protocols import Device, Flip, StagingCost, StepTimes, Verdict
from pipeline.watch import SERVICES, Places, Seen, Server, Snapshot, State
from services.inference.metrics import Numbers as InferenceNumbers
from services.prompting.metrics import Numbers as PromptingNumbers
from services.scoring.metrics import Numbers as ScoringNumbers
from services.training.metrics import BUCKETS, LAG_BUCKETS, SHOWN
from services.training.metrics import Numbers as TrainingNumbers
from services.training.run_metrics import RunNumbers
from services.training.starvation import BYS

UNITS = {
    "seconds", "bytes", "ratio", "nats", "tokens", "members", "sequences", "groups", "steps",
    "flips", "errors", "refusals", "workers", "leases", "processes", "letters", "lines",
    "requests", "verdicts", "faults", "retries", "changes", "differences",
}  # fmt: skip
WITHOUT_UNIT = {
    "reward",
    "shadow_reward",
    "learning_rate",
    "grad_norm",
    "version",
    "canary_version",
}
MAKES = {"counter", "counter_by", "gauge", "gauge_by", "histogram"}
WRITES = {"inc", "set", "observe", "set_function"}
RUN_METRICS = "services.training.run_metrics"
MEMBERS, MOST_SERIES = 10_000, 500

subjects = pytest.mark.parametrize("subject", SUBJECTS)


def sources(subject: str) -> list[ast.Module]:
    """Where the numbers of a subject are declared and counted."""
    if subject == "run":
        return [modules()[RUN_METRICS]]
    inside = [m for m in modules() if m.startswith(f"services.{subject}.") and m != RUN_METRICS]
    return [modules()[name] for name in (*inside, "pipeline.clock")]


def bases(node: ast.expr) -> Iterator[str]:
    """What a write is made to: `tokens` for `self.numbers.tokens.labels(…).inc`."""
    match node:
        case ast.Attribute(value=ast.Name(id="metrics"), attr=attr) if attr in MAKES:
            yield "at once"
        case ast.Call(func=func):
            yield from bases(func.value if _is(func, "labels") else func)
        case ast.Subscript(value=value):
            yield from bases(value)
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*bases(body), *bases(orelse))
        case ast.Attribute(attr=name) | ast.Name(id=name):
            yield name


def _is(node: ast.expr, attr: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == attr


def makes(node: ast.AST) -> bool:
    return any(
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Attribute)
        and inner.func.attr in MAKES
        and ast.unparse(inner.func.value) == "metrics"
        for inner in ast.walk(node)
    )


@subjects
def test_every_metric_is_counted_or_set_in_exactly_one_place(subject: str) -> None:
    targets, writes = list[str](), Counter[str]()
    for tree in sources(subject):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and makes(node.value):
                targets += bases(node.targets[0])
            if isinstance(node, ast.Attribute) and node.attr in WRITES:
                writes.update(bases(node.value))
    assert targets
    assert {name: writes[name] for name in targets if writes[name] != 1} == {}


@subjects
def test_every_metric_is_in_the_documentation(subject: str) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert declared(subject)
    for metric in declared(subject):
        assert f"| `{metric.name}` | {metric.kind} |" in page


@subjects
def test_a_name_ends_with_its_unit(subject: str) -> None:
    for metric in declared(subject):
        noun = metric.name.removeprefix(f"sluice_{subject}_").removesuffix("_total")
        assert noun in WITHOUT_UNIT or noun.rpartition("_")[2] in UNITS, metric.name
        assert metric.name.endswith("_total") == (metric.kind == "counter")


def names_looked_at() -> set[str]:
    """Every metric that a dashboard, a rule or the runbook names."""
    texts = [
        *dashboards().values(),
        (ROOT / "grafana" / "prometheus" / "rules.yml").read_text(encoding="utf-8"),
        (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8"),
    ]
    return {name for text in texts for name in re.findall(r"\bsluice_[a-z0-9_]+[a-z0-9]\b", text)}


def names_exported() -> dict[str, str]:
    """Every name that a series has, and the metric that it belongs to."""
    out = {}
    for subject, declare in SUBJECTS.items():
        metrics = Metrics(subject)
        declare(metrics)
        for family in text_string_to_metric_families(metrics.exposition().decode()):
            total = "_total" if family.type == "counter" else ""
            out |= {sample.name: f"{family.name}{total}" for sample in family.samples}
    return out


def test_every_metric_has_a_panel_a_rule_or_a_line_of_the_runbook() -> None:
    exported = names_exported()
    assert {*exported.values()} == {one.name for s in SUBJECTS for one in declared(s)}
    assert {*exported.values()} - {exported.get(name) for name in names_looked_at()} == set()


def test_every_name_that_is_looked_at_exists() -> None:
    assert names_looked_at() - names_exported().keys() == set()


def test_a_value_that_was_not_declared_makes_no_series_of_its_own() -> None:
    metrics = Metrics("made")
    errors = metrics.counter_by("errors", "Any.", reason=("timeout",))
    for number in range(1000):
        errors.labels(reason=f"member {number}").inc()
    errors.labels(reason="timeout").inc()
    assert metrics.totals() == {'errors{reason="timeout"}': 1, 'errors{reason="other"}': 1000}


def test_what_is_scraped_says_of_which_run_and_instance_it_is_and_a_beat_does_not() -> None:
    metrics = Metrics("made", run="demo", instance="made-0")
    metrics.counter("steps", "Any.").inc(3)
    assert b'sluice_made_steps_total{instance="made-0",run="demo"} 3.0' in metrics.exposition()
    assert metrics.totals() == {"steps": 3}


def test_numbers_beside_a_service_are_scraped_with_it_and_no_beat_carries_them() -> None:
    metrics = Metrics("training", run="demo", instance="a")
    beside = metrics.alike("run")
    beside.gauge("steps", "Any.").set(7)
    assert b"sluice_run_steps" not in metrics.exposition()
    metrics.serve(beside)
    assert b'sluice_run_steps{instance="a",run="demo"} 7.0' in metrics.exposition()
    assert metrics.gauges() == {} and metrics.totals() == {}


def prompting(metrics: Metrics, dice: random.Random) -> None:
    numbers = PromptingNumbers(metrics)
    for number in range(MEMBERS):
        numbers.groups.inc()
        numbers.unusable.labels(reason=f"reason {number}").inc()
        numbers.refusals.labels(reason=dice.choice(("full", "memory"))).inc()


def inference(metrics: Metrics, dice: random.Random) -> None:
    numbers = InferenceNumbers(metrics)
    for number in range(MEMBERS):
        boot, tokens = f"engine-{number % 64}:{number}", dice.randrange(1, 1 << 15)
        done = Completion(
            group=f"g{number}",
            member=number % 8,
            ids=bytes(4 * tokens),
            logprobs=b"",
            spans=(Span(number, tokens, boot),),
            finish=dice.choice(("stop", "length")),
        )
        numbers.delivered(done, boot, dice.choice(("ok", "closed", "late")))
        numbers.flipped(Flip(number, 0.1, StagingCost(1.0, 0.5, 1 << 30)))
        times = StepTimes(float(number), 0.1, False, 8)
        numbers.stepped(times, Device("gpu", 1), flipped=bool(number % 3))


def scoring(metrics: Metrics, dice: random.Random) -> None:
    numbers = ScoringNumbers(metrics)
    for number in range(MEMBERS):
        reward = dice.choice((None, dice.gauss(0, 3)))
        numbers.settled([Score(reward=reward, scorer=f"judge/{number}")])
        numbers.errors.labels(reason=f"raised by {number}").inc()
        verdict = Verdict(reward=0.0, reason=f"because of {number // 7}")
        numbers.judged(f"scorer {number % 7}", verdict)


COUNTED = ("groups", "members", "members_spanning", "tokens")


def training(metrics: Metrics, dice: random.Random) -> None:
    numbers = TrainingNumbers(metrics)
    for number in range(MEMBERS // 8):
        reasons = [dice.choice((*FATES, f"flaw {number}")) for _ in range(4)]
        numbers.observe(
            {one.key: dice.random() for one in SHOWN}
            | dict.fromkeys((*COUNTED, "imitated_tokens", "distilled_tokens"), 8)
            | {"finite": number % 9 > 0, "zero_signal_groups": 1, "step": number}
            | {"refused": dict.fromkeys(reasons, 1), "refused_tokens": dict.fromkeys(reasons, 9)}
            | {"refused_lengths": [(r, dice.choice(BUCKETS), 1) for r in reasons]}
            | {"lag_tokens": [(dice.randrange(100), 5)]}
            | {"least_share": {by: dice.random() for by in BYS}}
            | {"gaming": {"length": dice.random()}, "shadow": {}}
            | {"by_lag": {dice.choice((*LAG_BUCKETS, str(number))): {"ess": dice.random()}}}
        )


def run(metrics: Metrics, dice: random.Random) -> None:
    numbers = RunNumbers(metrics, target_steps=100)
    beats = tuple(
        Seen(
            beat=Beat(
                service=dice.choice(SERVICES),
                instance=f"process-{number}",
                boot=f"process-{number}:{number}",
                totals={"tokens": 9.0, 'device_seconds{device="gpu"}': 1.0},
            ),
            age_seconds=1.0,
            held=3,
        )
        for number in range(200)
    )
    for number in range(MEMBERS // 500):
        fates = {fate: Sum(number, 9 * number) for fate in (*FATES, f"fate {number}", GENERATED)}
        look = Snapshot(
            state=State(step=number),
            places=Places(prompts=number, open=1, groups=2),
            ledger=fates,
            window=64,
            per_step=8,
            lag_max=4,
            lease_seconds=15.0,
            beats=beats,
            server=Server(used_bytes=number),
        )
        numbers.observe(look, Counter({number: 3}), Counter({number - 1: 2}))


DRIVEN = {
    "prompting": prompting,
    "inference": inference,
    "scoring": scoring,
    "training": training,
}


@pytest.mark.parametrize("service", DRIVEN)
def test_a_service_has_fewer_than_500_series_after_10_000_members(service: str) -> None:
    metrics, dice = Metrics(service, run="demo", instance=f"{service}-0"), random.Random(1)
    DRIVEN[service](metrics, dice)
    if service == "training":
        beside = metrics.alike("run")
        run(beside, dice)
        metrics.serve(beside)
    families = text_string_to_metric_families(metrics.exposition().decode())
    series = [sample for family in families for sample in family.samples]
    assert len(series) == len({(s.name, *s.labels.items()) for s in series})
    assert len(series) < MOST_SERIES


def test_every_fate_of_the_glossary_is_counted_by_its_name() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").split("## Fates")[1]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")][1:]
    named = {name.strip() for row in rows for name in row.split(",")}
    assert named == {*FATES} and {*FLAWS} < named
