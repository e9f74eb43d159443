"""How a run ends, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from pipeline.watch import Seen


class Ending(NamedTuple):
    """What the bus tells everybody."""

    outcome: Literal["done", "failed"]
    reason: str


def left(step: int, *, complete: bool, drained: bool, alike: int = 0) -> Ending | None:
    """The loop was left after so many steps: all were made, or no data is left.

    None where neither holds: the run is not over, and a trainer that follows goes on. `alike` is
    how many members were in groups without a signal: why there was no step, if there was none.
    """
    steps = "1 step" if step == 1 else f"{step} steps"
    if complete:
        return Ending("done", steps)
    if not drained:
        return None
    why = f": no signal in the groups of {alike} members, whose outcomes were all alike"
    return Ending("done", f"the data ended after {steps}" + (why if alike and not step else ""))


def hopeless(beats: Iterable[Seen]) -> Ending | None:
    """Engines are there, and every one is quarantined: nobody will sample for this run again."""
    engines = [seen for seen in beats if seen.beat.service == "inference" and seen.alive]
    if not engines or not all(seen.quarantined for seen in engines):
        return None
    named = ", ".join(sorted(f"{seen.beat.instance} ({seen.quarantined})" for seen in engines))
    return Ending("failed", f"every engine is quarantined: {named}")
