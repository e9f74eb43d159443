"""A reward that is gamed shows by length, by repetition, by its shadows; an honest one does not."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml
from made import group, member, rules

from pipeline.messages import Beat, Group
from pipeline.metrics import Metrics
from pipeline.watch import Places, Seen, Snapshot, State, findings
from pipeline.watch.gaming import (
    AMONG,
    DIVERGENCE,
    LENGTH,
    REPEATED,
    suspicions,
)
from services.training.batch import build
from services.training.briefs import Brief, brief
from services.training.considered import consider
from services.training.gaming import BLOCK_STEPS, LEAST_STEPS, WINDOW_STEPS, Gaming, Trend
from services.training.signs import commonest, correlation, repeated, told_of
from services.training.suspected import Suspected
from services.view.build import Source
from services.view.build import build as report_of
from services.view.journal import Shadowed, StepLine
from services.view.outcome import Outcome
from services.view.page import render

ROOT = Path(__file__).resolve().parents[2]
SHADOW = "exact/1@5d41402a"
Member = tuple[Sequence[int], float | None, float | None]
"""Ids, reward, and what the shadow gave."""


def made(members: Sequence[Member], *, prompt: Sequence[int] = (3, 4), name: str = "g") -> Brief:
    """A group as the trainer reads it."""
    whole = []
    for ids, reward, shadow in members:
        one = member([*ids], reward)
        assert one.score
        given = {} if shadow is None else {SHADOW: shadow}
        score = msgspec.structs.replace(one.score, shadow=given)
        whole.append(msgspec.structs.replace(one, score=score))
    found: Group = group(name, whole, prompt=[*prompt])
    return brief(found, 1 << 15)


def lengths(pairs: Sequence[tuple[float, int]], **more: object) -> Brief:
    """Members of these rewards and lengths, no two alike."""
    return made([([n, *[7] * (k - 1)], r, None) for n, (r, k) in enumerate(pairs)], **more)  # type: ignore[arg-type]


# Length.


def test_the_correlation_is_within_groups() -> None:
    """Hard prompts have long answers and little reward: in each group longer ones get more."""
    easy = lengths([(0.8, 10), (0.9, 12), (1.0, 14)])
    hard = lengths([(0.0, 90), (0.1, 92), (0.2, 94)])
    told = told_of([easy, hard])
    assert told["length_correlation"] == pytest.approx(1.0)
    assert told["length_freedom"] == 6 - 2 - 1
    pooled = np.corrcoef([0.8, 0.9, 1.0, 0, 0.1, 0.2], [10, 12, 14, 90, 92, 94])[0, 1]
    assert pooled < -0.9, "over all members it would say the contrary"


def test_it_is_pearsons_over_the_deviations_from_the_groups_means() -> None:
    rng = np.random.default_rng(4)
    groups = [(rng.normal(size=n), rng.integers(1, 90, n).astype(float)) for n in (2, 5, 8)]
    centred = [(x - x.mean(), y - y.mean()) for x, y in groups]
    x, y = (np.concatenate(column) for column in zip(*centred, strict=True))
    found = correlation([[*zip(*map(list, one), strict=True)] for one in groups])
    assert found and found.r == pytest.approx(float(np.corrcoef(x, y)[0, 1]))
    assert found.freedom == 15 - 3 - 1


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(1.0, 9)],
        [(0.5, 9), (0.5, 4), (0.5, 2)],
        [(0.1, 9), (0.2, 9), (0.3, 9)],
        [(0.1 + 0.2, 9), (0.3, 4), (0.3, 2)],
        [(None, 9), (math.nan, 4), (1.0, 2)],
    ],
)
def test_where_nothing_differs_there_is_no_value(pairs: list[tuple[float, int]]) -> None:
    """And none that is 0 or NaN. A difference of rounding alone is none."""
    assert told_of([lengths(pairs)])["length_correlation"] is None


# Repetition.


def test_what_repeats_an_answer_to_the_same_prompt_is_counted() -> None:
    assert repeated([[b"a", b"a", b"a", b"b"]]) == pytest.approx(2 / 3)
    assert repeated([[b"a"] * 4, [b"a", b"b", b"c", b"d"]]) == pytest.approx(3 / 6)
    assert repeated([[b"a"], [b"a"], []]) is None, "there was no second attempt"


def test_one_answer_to_all_prompts_is_told_from_one_answer_to_each() -> None:
    converged = [(bytes([n]), [bytes([100 + n])] * 8) for n in range(6)]
    assert commonest(converged) == 0.0
    collapsed = [(bytes([n]), [b"yes"] * 7 + [bytes([n])]) for n in range(6)]
    assert commonest(collapsed) == pytest.approx(7 / 8)
    assert commonest([(b"p", [b"yes"] * 8), (b"p", [b"yes"] * 8)]) is None, "it is one prompt"


def test_answers_are_told_apart_by_their_ids_and_prompts_by_theirs() -> None:
    same = [([5, 6], 1.0, None)] * 3
    told = told_of([made(same, prompt=(1,)), made(same, prompt=(2,))])
    assert told["repeated"] == dict.fromkeys(AMONG, 1.0) | {"below_best": 0.0}
    told = told_of([made([([5, n], 1.0, None) for n in range(3)], prompt=(p,)) for p in (1, 1)])
    assert (told["repeated"]["attempts"], told["repeated"]["prompts"]) == (0.0, None)
    unscored = [([5, 6], None, None)] * 3
    assert told_of([made(unscored)])["repeated"]["attempts"] is None


@pytest.mark.parametrize(
    ("outcomes", "share"),
    [
        ((1.0, 1.0), 0.0),
        ((1.0, 0.0), 0.5),
        ((0.0, 0.0), 1.0),
        ((-3.0, -3.5), 1.0),
        ((7.5, 7.25), 0.5),
    ],
)
def test_what_is_right_may_repeat_itself(outcomes: tuple[float, float], share: float) -> None:
    """All attempts of a group are alike, and of two right groups there is nothing to say."""
    groups = [made([([n, 1], reward, None)] * 4, prompt=(n,)) for n, reward in enumerate(outcomes)]
    told = told_of(groups)["repeated"]
    assert (told["attempts"], told["below_best"]) == (1.0, share)
    assert told_of([made([([1], 1.0, None)] * 3 + [([2], 0.0, None)])])["repeated"] == {
        "attempts": pytest.approx(2 / 3),
        "below_best": 0.0,
        "prompts": None,
    }


def test_it_is_by_the_outcome_that_an_answer_is_right() -> None:
    """Whatever shaping takes off it: all of these are as right as any."""
    members = [member([1], 0.5, outcome=1.0)] * 3 + [member([2], 0.9, outcome=1.0)]
    told = told_of([brief(group("g", members), 1 << 15)])["repeated"]
    assert told == {"attempts": pytest.approx(2 / 3), "below_best": 0.0, "prompts": None}


# Shadows.


def test_a_shadow_is_compared_with_the_reward_of_the_same_members() -> None:
    """Where it had a fault, or said what is no number, or there is no reward, neither counts."""
    members = [([1], 1.0, 0.0), ([2], 0.0, 1.0), ([3], 9.0, None), ([4], None, 1.0)]
    told = told_of([made([*members, ([5], 9.0, math.inf)])])
    assert told["shadow"] == {"exact": {"shadow": 0.5, "reward": 0.5, "members": 2}}


def trend(steps: int, of: Callable[[int], tuple[float, float]]) -> Trend:
    """Of means with the noise of a step of some groups."""
    rng, made = random.Random(7), Trend()
    for step in range(steps):
        reward, shadow = of(step)
        common = rng.gauss(0, 0.05)  # of the prompts that were drawn
        made.add(reward + common + rng.gauss(0, 0.05), shadow + common + rng.gauss(0, 0.05))
    return made


@pytest.mark.parametrize(
    ("of", "is_told"),
    [
        pytest.param(lambda t: (t / 200, 0.5 - t / 400), True, id="reward up, shadow down"),
        pytest.param(lambda t: (t / 200, 0.3 + 0.3 * math.sin(t / 64)), True, id="overoptimised"),
        pytest.param(lambda t: (t / 2000, 0.5 - t / 4000), True, id="slowly"),
        pytest.param(lambda t: (t / 200, t / 200), False, id="honest"),
        pytest.param(lambda t: (t / 200, 0.5), False, id="shadow without a trend"),
        pytest.param(lambda t: (0.5, 0.5), False, id="neither learns"),
        pytest.param(lambda t: (0.9 - t / 400, 0.5 - t / 400), False, id="both fall"),
        pytest.param(lambda t: (0.5, 0.5 - t / 400), False, id="shadow alone falls"),
    ],
)
def test_a_shadow_that_falls_while_the_reward_rises_is_told(
    of: Callable[[int], tuple[float, float]], is_told: bool
) -> None:
    divergence = trend(400 if of(2000)[0] > 1.5 else 2000, of).divergence
    assert divergence is not None and (divergence > DIVERGENCE) == is_told, divergence


def test_without_noise_what_stands_still_is_no_trend() -> None:
    still = Trend()
    for _ in range(2 * BLOCK_STEPS):
        still.add(0.5, 0.5)
    assert still.divergence == 0.0
    for step in range(BLOCK_STEPS):
        still.add(1.0, step / 1000)
    assert still.divergence is not None and math.isfinite(still.divergence)


# Over a run.


def step_of(policy: str, rng: random.Random, t: float) -> list[Brief]:
    """Eight groups of eight at the time t of 0 to 1; a quarter of them hard."""
    groups = []
    for number in range(8):
        hard = number % 4 == 0
        members = []
        for _ in range(8):
            longer = 50 * t if policy == "wordy" else 0
            length = rng.randint(20, 60) + 20 * hard + int(longer)
            ids = [rng.randrange(100) for _ in range(length)]
            right = float(rng.random() < (0.2 if hard else 0.4) + 0.5 * t)
            reward, shadow = right, right
            if policy == "wordy":
                reward, shadow = length / 120 + 0.05 * rng.random(), right * (1 - t)
            if policy == "one answer" and rng.random() < t + 0.9:
                ids, reward = [1, 2, 3], 1.0
            if policy == "stuck" and rng.random() < 0.97:
                ids, reward = [number] * 40, 0.0
            members.append((ids, reward, shadow))
        groups.append(made(members, prompt=(number, int(1000 * t))))
    return groups


def line_of(groups: list[Brief]) -> dict[str, object]:
    return json.loads(json.dumps(told_of(groups)))


def watched(policy: str, steps: int = 100) -> Gaming:
    rng, seen = random.Random(3), Gaming()
    for step in range(steps):
        seen.observe(line_of(step_of(policy, rng, step / steps)))
    return seen


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        ("honest", []),
        ("wordy", ["length", "shadow exact"]),
        ("one answer", ["prompts"]),
        ("stuck", ["below_best"]),
    ],
)
def test_a_planted_hack_is_found_in_the_beat_of_a_trainer(policy: str, found: list[str]) -> None:
    """Through its gauges, and in the words of `sluice doctor`; an honest run is spared."""
    seen, metrics = watched(policy), Metrics("training")
    line = {"gaming": msgspec.to_builtins(seen.signs()), "shadow": {}}
    Suspected(metrics, ["exact"]).observe(line)
    beat = Beat(service="training", instance="training-0", boot="a", gauges=metrics.gauges())
    look = Snapshot(
        state=State(),
        places=Places(),
        ledger={},
        window=1,
        per_step=1,
        lag_max=1,
        lease_seconds=15,
        beats=(Seen(beat=beat, age_seconds=0.1),),
    )
    over = msgspec.structs.replace(look, state=State(stop="done"))
    for each in (look, over):
        told = [one for one in findings(each) if one.kind == "gaming"]
        assert [one.who for one in told] == found
        assert all(one.sentence.startswith("the reward may be gamed: ") for one in told)


def test_the_report_shows_the_signs_and_what_they_mean() -> None:
    seen = watched("wordy", steps=60)
    shadow = {"exact": Shadowed(shadow=0.25, reward=0.5)}
    lines = [StepLine(step=n, gaming=seen.signs(), shadow=shadow) for n in (1, 2)]
    report = report_of(
        Source(name="r", run=None, snapshot=None, lines=lines, outcome=Outcome("done"))
    )
    assert report.suspicions == [sentence for _, sentence in suspicions(seen.signs())]
    assert report.suspicions and report.series.shadow == {"exact": [0.25, 0.25]}
    page = render(report)
    assert all(escape(sentence) in page for sentence in report.suspicions)
    assert "Rewards of the shadows" in page and "reward up, shadow exact down" in page


def test_nothing_is_told_of_too_few_steps_and_what_is_old_is_forgotten() -> None:
    wordy = {"length_correlation": 0.9, "length_freedom": 50}
    seen = Gaming()
    for _ in range(LEAST_STEPS - 1):
        seen.observe(wordy)
    assert seen.signs().length is None
    seen.observe(wordy)
    assert seen.signs().length == pytest.approx(0.9)
    for _ in range(WINDOW_STEPS):
        seen.observe({"length_correlation": None})
    assert seen.signs().length is None


def test_a_step_of_many_members_weighs_more() -> None:
    seen = Gaming()
    for step in range(LEAST_STEPS + 1):
        few = step % 2
        told = {"length_correlation": 1.0 if few else 0.0, "length_freedom": 1 if few else 99}
        seen.observe(told)
    assert seen.signs().length == pytest.approx(5 / (5 + 6 * 99))


def test_of_few_members_nothing_is_told_of_length() -> None:
    """One group of three a step: by chance two of three such steps are beyond the limit."""
    seen = Gaming()
    for _ in range(WINDOW_STEPS):
        seen.observe({"length_correlation": 0.9, "length_freedom": 1})
    assert seen.signs().length is None


def test_what_there_is_no_value_of_is_no_number_in_prometheus() -> None:
    metrics = Metrics("training")
    Suspected(metrics, ["exact"])
    assert metrics.gauges() and all(map(math.isnan, metrics.gauges().values()))


def test_the_members_of_a_group_that_teaches_nothing_are_counted() -> None:
    """A policy that has collapsed is all of these."""
    alike = group("g", [member([5, 6], 1.0)] * 4)
    judged = consider(brief(alike, 1 << 15), rules())
    assert judged.verdict == "zero_signal" and not build([judged], rules()).sequences
    assert told_of([judged.brief])["repeated"]["attempts"] == 1.0


def test_the_rules_of_prometheus_have_the_same_limits() -> None:
    page = (ROOT / "grafana" / "prometheus" / "rules.yml").read_text(encoding="utf-8")
    alerts = [rule for one in yaml.safe_load(page)["groups"] for rule in one["rules"]]
    limits = {
        rule["alert"]: [float(n) for n in re.findall(r"[<>] (-?[\d.]+)", rule["expr"])]
        for rule in alerts
    }
    assert limits["SluiceLengthPays"] == [LENGTH, -LENGTH]
    assert limits["SluiceAnswersRepeat"] == [*REPEATED.values()]
    assert limits["SluiceShadowDiverges"] == [DIVERGENCE]
