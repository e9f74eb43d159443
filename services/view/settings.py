"""The configuration of a run on its page: a table for each section."""

from __future__ import annotations

from html import escape
from typing import Any


def sections(tree: dict[str, Any]) -> str:
    """The run's own keys first, then every section."""
    own = {key: value for key, value in tree.items() if not _is_section(value)}
    named = {key: value for key, value in tree.items() if _is_section(value)}
    parts = [table("run", own), *(table(name, keys) for name, keys in named.items())]
    body = "".join(parts)
    return f'<div class="columns">{body}</div>' if body else ""


def table(title: str, rows: dict[str, Any]) -> str:
    """Keys and values; those without a value are left out."""
    known = {key: value for key, value in rows.items() if value not in (None, "")}
    body = "".join(
        f"<tr><td><code>{escape(key)}</code></td><td><code>{escape(_told(value))}</code></td></tr>"
        for key, value in known.items()
    )
    head = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<div class="keys">{head}<table>{body}</table></div>' if body else ""


def _is_section(value: Any) -> bool:
    """A table of keys, and no plug-in with its options."""
    return isinstance(value, dict) and "use" not in value


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_told(v)}" for key, v in value.items())
    if isinstance(value, list):
        return "; ".join(map(_told, value))
    return str(value)
