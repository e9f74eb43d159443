"""What a keeper of runs needs: which there are on a server, who is in one, and removing one.

A run may be half there, as its removal may be cut short: nothing here needs it to be open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from redis.exceptions import RedisError

from pipeline.bus.scripts import Scripts

SCAN_COUNT = 1000
MOST_SCANS = 1000
_RUN_KEY = re.compile(r"sluice:\{(.+)\}:run")


def read_runs(scripts: Scripts) -> list[str]:
    """The runs on this server, by name; of the first million keys, where it has more."""
    found: list[Any] = []
    cursor = 0
    try:
        for _ in range(MOST_SCANS):
            cursor, keys = scripts.client.scan(cursor, match="sluice:{*}:run", count=SCAN_COUNT)
            found += keys
            if not cursor:
                break
    except RedisError as exc:
        raise scripts.error(exc) from exc
    return sorted({match[1] for key in found if (match := _RUN_KEY.fullmatch(key.decode()))})


def read_awake(scripts: Scripts) -> dict[str, str]:
    """Boots whose beat is younger than a lease, also those that just ended; boot to instance."""
    keys = scripts.keys
    lease_ms, beats, (seconds, micros) = scripts.read(
        ("HGET", keys.run, "lease_ms"), ("ZRANGE", keys.beat, 0, -1, "WITHSCORES"), ("TIME",)
    )
    now = int(seconds) * 1000 + int(micros) // 1000
    last = {boot.decode(): float(beat) for boot, beat in zip(beats[::2], beats[1::2], strict=True)}
    awake = [boot for boot, beat in last.items() if now - beat <= int(lease_ms or 0)]
    if not awake:
        return {}
    fields = [f"{boot}|instance" for boot in awake]
    (names,) = scripts.read(("HMGET", keys.who, *fields))
    return {b: name.decode() if name else b for b, name in zip(awake, names, strict=True)}


def count_keys(scripts: Scripts) -> int:
    """How many keys the run has."""
    try:
        return len({*_keys(scripts)})
    except RedisError as exc:
        raise scripts.error(exc) from exc


def delete_keys(scripts: Scripts) -> int:
    """Delete every key of the run, and no other; how many. The caller asks first."""
    try:
        # The first to go, since without it every act is refused: none makes a key anew.
        deleted = int(scripts.client.unlink(scripts.keys.run))
        keys = _keys(scripts)
        while batch := [*islice(keys, SCAN_COUNT)]:
            deleted += int(scripts.client.unlink(*batch))
        return deleted
    except RedisError as exc:
        raise scripts.error(exc) from exc


def _keys(scripts: Scripts) -> Iterator[bytes]:
    yield from scripts.client.scan_iter(match=scripts.keys.prefix + "*", count=SCAN_COUNT)
