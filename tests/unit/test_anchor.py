"""The gap to the policy that sampled is counted once, or the run does not start."""

from typing import Any

import msgspec
import pytest

from pipeline.anchor import check_anchor
from pipeline.errors import ConfigError
from pipeline.run import Control, Objective

TIS = {"use": "tis", "level": "geometric"}


@pytest.mark.parametrize(
    ("keys", "where", "words"),
    [
        ({"correction": "tis"}, "objective.correction", ["cispo", "twice", '"proximal"']),
        (
            {"loss": "ppo", "correction": TIS},
            "objective.correction",
            ["ppo", "twice", '"proximal"'],
        ),
        (
            {"loss": {"use": "mine:loss"}, "correction": "mine:weight"},
            "objective.correction",
            ["mine:loss", "twice"],
        ),
        (
            {"loss": "ppo", "anchor": "proximal", "correction": ["tis", "icepop"]},
            "objective.correction",
            ["tis and icepop", "twice", "masks can stand beside"],
        ),
        (
            {"loss": "ppo", "correction": ["opsm"]},
            "objective.correction",
            ["ppo", "twice", '"proximal"'],
        ),
        (
            {"loss": "ppo", "anchor": "proximal", "correction": "decoupled"},
            "objective.correction",
            ["interpolated policy", '"interpolated"', '"tis"'],
        ),
        (
            {"loss": "gspo"},
            "objective.anchor",
            ["gspo", "'behaviour'", '"proximal"'],
        ),
        (
            {"loss": "ppo", "normalise": True},
            "objective.normalise",
            ["no weights", "correction"],
        ),
        (
            {"loss": "ppo", "anchor": "proximal", "correction": ["opsm"], "normalise": True},
            "objective.normalise",
            ["no weights", "tis, icepop, decoupled"],
        ),
        (
            {"kl": {"use": "k1", "coefficient": 0.1}},
            "objective.kl",
            ["no gradient in expectation", '"k3"'],
        ),
        (
            {"anchor": "proximal", "correction": "tis"},
            "objective.anchor",
            ["cispo", "from ppo", '"behaviour"'],
        ),
    ],
)
def test_what_counts_the_gap_twice_is_refused_with_reason_and_remedy(
    keys: dict[str, Any], where: str, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        check_anchor(Objective(**keys))
    assert raised.value.where == where
    assert all(word in str(raised.value) for word in words), str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"loss": "ppo"},
        {"loss": "mine:loss"},
        {"loss": "m2po", "anchor": "proximal"},
        {"loss": "reinforce", "anchor": "proximal", "correction": [TIS, "opsm", "mine:weight"]},
        {"loss": "ppo", "anchor": "interpolated", "correction": "decoupled", "normalise": True},
        {"kl": {"use": "k3", "coefficient": 0.1}},
    ],
)
def test_what_counts_the_gap_once_is_all_right(keys: dict[str, Any]) -> None:
    assert check_anchor(Objective(**keys)) is None


@pytest.mark.parametrize(("correction", "alone"), [("tis", False), ("none", True)])
def test_that_clipping_cannot_act_is_said(correction: str, alone: bool) -> None:
    said = check_anchor(Objective(loss="ppo", anchor="proximal", correction=correction))
    assert said is not None and "ppo cannot clip" in said
    assert ("nothing corrects" in said) is alone


def test_that_a_part_of_the_gap_is_not_corrected_is_said() -> None:
    said = check_anchor(Objective(loss="ppo", anchor="interpolated"))
    assert said is not None and "a part of the gap" in said and "clip" not in said


def test_gspo_says_so_where_its_sequences_do_not_weigh_the_same() -> None:
    parts = {"loss": "gspo", "anchor": "proximal", "correction": "tis"}
    assert "objective.aggregation" in (check_anchor(Objective(**parts)) or "")
    alike = Objective(**parts, aggregation="sequence")
    assert "objective.aggregation" not in (check_anchor(alike) or "")


def test_a_mismatch_to_hold_is_in_nats() -> None:
    with pytest.raises(ValueError, match="nats"):
        Control(measure="mismatch_k3")
    assert Control(measure="mismatch_k3", target=0.01).target == 0.01


def test_an_effective_sample_of_more_than_all_tokens_is_no_target() -> None:
    with pytest.raises(msgspec.ValidationError, match="<= 1"):
        msgspec.convert({"target": 1.01}, Control)
    assert msgspec.convert({"target": 1.0}, Control).measure == "ess"
