"""What makes a prompt usable, alike in all data sets."""

from __future__ import annotations

from pipeline.protocols import Text


def fault_of(prompt: Text) -> str:
    """The rule that the prompt breaks; empty where it is usable."""
    if isinstance(prompt, str):
        return "" if prompt.strip() else "its prompt is empty"
    if not prompt:
        return "its prompt is a chat without messages"
    if prompt[-1].role == "assistant":
        return "its last message is the assistant's, so that there is nothing to answer"
    return ""
