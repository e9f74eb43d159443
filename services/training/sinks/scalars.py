"""The numbers of a line of metrics.jsonl, as charts have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """By name, those of an object in it as NAME/KEY; without what is no number, or not finite."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{key}": number for key, number in scalars(value).items()}
        elif isinstance(value, (int, float)):
            found[name] = float(value)
    return found
