"""Every panel of every dashboard, asked of a live Prometheus: which of them would be empty?"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Ask = Callable[..., Any]

SPAN = "10m:10s"
"""A panel has data if it had any in so long a time: what happens now and then counts."""
BUILT_IN = {"__rate_interval": "1m", "__interval": "15s", "__range": "5m"}


def empty(folder: Path, ask: Ask) -> list[str]:
    """Panels without data, as `dashboard: title`; `ask` is `Stack.prometheus`.

    Raises OSError (a bad request) for a query that cannot be read.
    """
    return [
        f"{board.stem}: {panel['title']}"
        for board in sorted(folder.glob("*.json"))
        for panel in _panels(json.loads(board.read_text())["panels"])
        if (queries := [target["expr"] for target in panel.get("targets", [])])
        and not any(_has_data(query, ask) for query in queries)
    ]


def _panels(found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in found:
        yield panel
        yield from _panels(panel.get("panels", []))


def _has_data(query: str, ask: Ask) -> bool:
    asked = f"count(last_over_time(({_filled(query)})[{SPAN}]))"
    return bool(ask("query", query=asked)["result"])


def _filled(query: str) -> str:
    """With any value for each variable of the dashboard."""
    return re.sub(r"\$\{?(\w+)\}?", lambda name: BUILT_IN.get(name[1], ".*"), query)
