"""Pure: what in an objective counts the gap twice, cannot act, or needs what the run has not got.

The gap is the one between the policy that sampled a token and the one that learns from it. The
formulas are in the training service; this is what can be known of them before it starts. A part of
a user's own is taken for one that goes with everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pipeline import plugins
from pipeline.errors import ConfigError
from pipeline.run import Objective, Spec

BEHAVIOUR, PROXIMAL, INTERPOLATED = "behaviour", "proximal", "interpolated"


class Traits(NamedTuple):
    """Of a loss: the anchors that it may have, and whether all it does to a ratio is to bound it.

    Where each ratio is 1, as with one step a batch, that bound cannot act.
    """

    anchors: tuple[str, ...] = (BEHAVIOUR, PROXIMAL, INTERPOLATED)
    bounds: bool = True


LOSSES = {
    "ppo": Traits(),
    "gspo": Traits((PROXIMAL,)),
    "sapo": Traits((BEHAVIOUR, PROXIMAL)),
    "m2po": Traits((BEHAVIOUR, PROXIMAL), bounds=False),
    "reinforce": Traits((PROXIMAL,), bounds=False),
    "cispo": Traits((BEHAVIOUR,)),
    "topr": Traits((BEHAVIOUR,)),
    "tis_pg": Traits((BEHAVIOUR,)),
    "kimi": Traits((BEHAVIOUR,)),
    "dppo_tv": Traits((BEHAVIOUR,)),
    "ipo": Traits((BEHAVIOUR,)),
    "rollout_is": Traits((BEHAVIOUR,)),
}

WEIGHTS = ("tis", "icepop", "decoupled")
"""Corrections that bring importance in."""
MASKS = ("mask_geometric", "mask_k", "opsm")
"""Those that only take tokens out."""


class Chosen(NamedTuple):
    """An objective by the names of its parts, as the rules ask for them."""

    loss: str
    anchor: str
    corrections: tuple[str, ...]
    normalise: bool
    kl: str
    aggregation: str

    @property
    def traits(self) -> Traits:
        """Of the loss."""
        return LOSSES.get(self.loss, Traits())

    @property
    def weights(self) -> tuple[str, ...]:
        """Those corrections that bring importance in."""
        return tuple(name for name in self.corrections if name in WEIGHTS)

    @property
    def words(self) -> dict[str, str]:
        """What messages are filled with."""
        able = [name for name, traits in LOSSES.items() if self.anchor in traits.anchors]
        return {
            "loss": self.loss,
            "anchor": self.anchor,
            "correction": " and ".join(self.corrections),
            "weights": " and ".join(self.weights),
            "own": self.traits.anchors[0],
            "able": ", ".join(able),
        }


class Rule(NamedTuple):
    """What must not be: the key at fault, when it is, why, and what to do instead."""

    key: str
    broken: Callable[[Chosen], bool]
    reason: str
    remedy: str = ""


REFUSED = (
    Rule(
        "anchor",
        lambda of: of.anchor not in of.traits.anchors,
        "the ratio of {loss}, if any, is to another policy",
        'choose objective.loss from {able}, or objective.anchor = "{own}"',
    ),
    Rule(
        "correction",
        lambda of: bool(of.corrections) and of.anchor == BEHAVIOUR,
        "counts the gap to the policy that sampled twice: {loss} has it in its ratio",
        'remove it, or set objective.anchor = "proximal" and a loss that can have it',
    ),
    Rule(
        "correction",
        lambda of: len(of.weights) > 1,
        "counts the gap to the policy that sampled twice: {weights} are both weights for it",
        "keep one of them; masks can stand beside it",
    ),
    Rule(
        "correction",
        lambda of: "decoupled" in of.corrections and of.anchor != INTERPOLATED,
        "is the weight as far as the interpolated policy, which {loss} is not anchored at here",
        'set objective.anchor = "interpolated", or objective.correction = "tis"',
    ),
    Rule(
        "normalise",
        lambda of: of.normalise and all(name in MASKS for name in of.corrections),
        "there are no weights that it could scale",
        f"remove it, or choose an objective.correction that is one: {', '.join(WEIGHTS)}",
    ),
    Rule(
        "kl",
        lambda of: of.kl == "k1",
        "as a loss it has no gradient in expectation",
        'choose objective.kl = {{ use = "k3", coefficient = 0.001 }}',
    ),
)
"""In this order: the first that is broken is told."""

SAID = (
    Rule(
        "aggregation",
        lambda of: of.loss == "gspo" and of.aggregation != "sequence",
        "gspo's ratio is a sequence's, and each weighs the same only with objective.aggregation ="
        " sequence",
    ),
    Rule(
        "anchor",
        lambda of: of.anchor == PROXIMAL and of.traits.bounds,
        "with objective.anchor = proximal and one step a batch every ratio is 1: {loss} cannot"
        " clip",
    ),
    Rule(
        "correction",
        lambda of: of.anchor == PROXIMAL and not of.corrections and of.loss != "m2po",
        "with objective.anchor = proximal nothing corrects for late tokens",
    ),
    Rule(
        "correction",
        lambda of: of.anchor == INTERPOLATED and not of.corrections,
        "with objective.anchor = interpolated {loss} sees a part of the gap, and nothing corrects"
        " for the other",
    ),
)
"""What may be meant, and is said at start."""


def check_anchor(objective: Objective) -> str | None:
    """What cannot act or is not corrected, to be said at start; None where nothing is amiss.

    Raises ConfigError for what is refused.
    """
    of = chosen(objective)
    for rule in REFUSED:
        if rule.broken(of):
            value, words = getattr(objective, rule.key), of.words
            reason, remedy = rule.reason.format(**words), rule.remedy.format(**words)
            raise ConfigError(f"objective.{rule.key}", value, rule=reason, remedy=remedy)
    said = [rule.reason.format(**of.words) for rule in SAID if rule.broken(of)]
    return "; ".join(said) or None


def corrections_of(objective: Objective) -> list[Spec]:
    """All that are multiplied."""
    given = objective.correction
    return given if isinstance(given, list) else [given]


def chosen(objective: Objective) -> Chosen:
    """Its parts' names. Raises ConfigError where one has none."""
    specs = corrections_of(objective)
    corrections = [plugins.name_of(spec, "objective.correction") for spec in specs]
    return Chosen(
        loss=plugins.name_of(objective.loss, "objective.loss"),
        anchor=objective.anchor,
        corrections=tuple(name for name in corrections if name != "none"),
        normalise=objective.normalise,
        kl=plugins.name_of(objective.kl, "objective.kl") if objective.kl else "",
        aggregation=objective.aggregation,
    )
