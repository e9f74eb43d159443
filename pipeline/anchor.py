"""Pure: which anchors a loss may have, so that the gap to the behaviour policy is counted once.

The formulas are in the training service; this is what can be known of them before it starts.
"""

from __future__ import annotations

from pipeline import plugins
from pipeline.errors import ConfigError
from pipeline.run import Objective

BEHAVIOUR, PROXIMAL = "behaviour", "proximal"

ANCHORS = {"cispo": (BEHAVIOUR,), "ppo": (BEHAVIOUR, PROXIMAL)}
"""Of our own losses; one of a user's may have either."""


def check_anchor(objective: Objective) -> str | None:
    """What cannot act or is not corrected, to be said at start; None where nothing is amiss.

    Raises ConfigError for a loss that has no such anchor, and for a gap that is counted twice.
    """
    loss = plugins.name_of(objective.loss, "objective.loss")
    correction = plugins.name_of(objective.correction, "objective.correction")
    if objective.anchor not in ANCHORS.get(loss, (BEHAVIOUR, PROXIMAL)):
        able = ", ".join(name for name, anchors in ANCHORS.items() if objective.anchor in anchors)
        rule = f"the ratio of {loss} is always to the policy that sampled"
        remedy = f'choose objective.loss from {able}, or objective.anchor = "{BEHAVIOUR}"'
        raise ConfigError("objective.anchor", objective.anchor, rule=rule, remedy=remedy)
    if objective.anchor == BEHAVIOUR:
        if correction != "none":
            rule = f"counts the gap to the policy that sampled twice: {loss} has it in its ratio"
            remedy = (
                f'remove it, or set objective.anchor = "{PROXIMAL}" and a loss that can have it'
            )
            raise ConfigError("objective.correction", correction, rule=rule, remedy=remedy)
        return None
    said = f"with objective.anchor = {PROXIMAL} and one step a batch every ratio is 1: {loss}"
    said += " cannot clip"
    return said if correction != "none" else f"{said}, and nothing corrects for late tokens"
