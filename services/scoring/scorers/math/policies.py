"""What a run decides, since readers differ on it; all else about equality is fixed.

What each choice means for whom is in docs/math.md.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

PercentPolicy = Literal["value", "unit", "either"]
BasesPolicy = Literal["same", "value", "dropped"]
UnitsPolicy = Literal["needed", "optional"]
UnboxedPolicy = Literal["refused", "marked"]


class Policies(NamedTuple):
    """The options of `math`, under the names that they have there."""

    percent: PercentPolicy = "value"
    """50% is 0.5 (value), as good as 50 (unit), or as good as any of the two (either)."""

    rounding: int = 12
    """Figures from which on a decimal stands for what it is the rounded, or cut, value of."""

    bases: BasesPolicy = "same"
    """52_8 is only 52_8 (same), is 42 (value), or is as good as 52 (dropped)."""

    units: UnitsPolicy = "needed"
    """A unit of the reference must be given (needed), or can be left out (optional)."""

    unboxed: UnboxedPolicy = "refused"
    """Without a box there is no answer (refused), or one behind "Final answer:" (marked)."""
