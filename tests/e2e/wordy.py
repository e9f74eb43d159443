"""A reward that can be had without knowing anything: it pays for length alone."""

from __future__ import annotations

from pipeline.protocols import Answer


def wordy(answer: Answer) -> float:
    """The share of the room that the answer takes."""
    return len(answer.ids) / answer.max_tokens
