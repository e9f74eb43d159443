"""Whether live weights are those that were announced: read back, else told by the canary."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from pipeline.messages import Manifest
from services.inference.canary import fault_of, gap_of


def proof(
    manifest: Manifest,
    differing: list[str] | None,
    logprobs: Callable[[Sequence[int]], list[float]],
    *,
    canary_gap: float,
) -> str:
    """Empty if they are; else what differs, in words that are no fingerprint.

    `differing` are the tensors that were read back and found to differ, or None where they cannot
    be read.
    """
    if differing:
        return f"{len(differing)} live tensors differ: {', '.join(differing[:3])}"
    if differing is not None:
        return ""
    if (canary := manifest.canary) is None:
        return "vLLM's layout cannot be read back, and there is no canary"
    return fault_of(gap_of(canary, logprobs(array("i", canary.ids))), canary_gap)
