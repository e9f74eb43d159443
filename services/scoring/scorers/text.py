"""Scorers that compare text."""

from __future__ import annotations

from pipeline.protocols import Answer, Verdict


def exact(answer: Answer) -> Verdict:
    """1 where the text is the reference, written out; white space around either is no matter."""
    right = answer.text.strip() == str(answer.reference).strip()
    return Verdict(reward=float(right))
