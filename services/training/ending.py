"""How a run ends, in words. Pure. It ends with its trainer, since it cannot be resumed yet."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pipeline.errors import SluiceError


class Ending(NamedTuple):
    """What the bus tells everybody."""

    outcome: Literal["done", "failed"]
    reason: str


def left(step: int, *, complete: bool, drained: bool, signal: str) -> Ending:
    """The loop was left after so many steps: all were made, no data is left, or a signal came."""
    steps = "1 step" if step == 1 else f"{step} steps"
    if complete:
        return Ending("done", steps)
    if drained:
        return Ending("done", f"the data ended after {steps}")
    return Ending("failed", f"training was stopped by {signal or 'another'} at step {step}")


def crashed(step: int, exc: Exception) -> Ending:
    """The first line of what was raised, with its kind where it is none of ours."""
    kind = "" if isinstance(exc, SluiceError) else f"{type(exc).__name__}: "
    said = (str(exc).strip() or "no reason given").splitlines()[0]
    return Ending("failed", f"training failed at step {step}: {kind}{said}")
