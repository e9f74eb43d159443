"""What Python's reader of JSON lets pass, and RFC 8259 does not: hooks that refuse it.

How large a value may be, and what a refusal means, is up to who reads.
"""

from __future__ import annotations

from typing import Any, NoReturn


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook`; raises ValueError where a key stands twice."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key stands twice")
    return table


def no_constant(name: str) -> NoReturn:
    """A `parse_constant`; raises ValueError for NaN and the infinities."""
    raise ValueError(f"{name} is no number")
