"""What a keeper of runs needs: which there are on a server, who is in one, what is left over in it,
and removing one.

A run may be half there, as its removal may be cut short: nothing here needs it to be open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from redis.exceptions import RedisError

from pipeline.bus.scripts import Scripts

SCAN_COUNT = 1000
MOST_SCANS = 1000
_FOR_GOOD = -1
_PIECE = re.compile(r"b:(.+):([crp]:[\d:]+):[0-9a-f]+:\d+")
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


def read_strays(scripts: Scripts) -> list[str]:
    """The pieces of large cargo that stay for good though no group refers to them, by key."""
    out: list[str] = []
    try:
        keys = _keys(scripts, "b:")
        while batch := [*islice(keys, SCAN_COUNT)]:
            out += _strays(scripts, [key.decode() for key in batch])
    except RedisError as exc:
        raise scripts.error(exc) from exc
    return sorted({*out})


def _strays(scripts: Scripts, pieces: Sequence[str]) -> Iterator[str]:
    """Whoever refers to a piece makes it stay in the same act, and whoever ceases to deletes it.

    So one that stayed before and after nobody referred to it is stray.
    """
    commands: list[tuple[str, ...]] = []
    for key in pieces:
        match = _PIECE.fullmatch(key.removeprefix(scripts.keys.prefix))
        group, field = match.groups() if match else ("", "")
        asked = ("HGET", scripts.keys.group(group), f"b:{field}")
        commands += [("TTL", key), asked, ("TTL", key)]
    replies = scripts.read(*commands)
    for key, before, blob, after in zip(
        pieces, replies[::3], replies[1::3], replies[2::3], strict=True
    ):
        name = blob.decode().partition(" ")[0] if blob else ""
        is_claimed = key.startswith(scripts.keys.piece(name, 0)[:-1])
        if before == after == _FOR_GOOD and not is_claimed:
            yield key


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


def _keys(scripts: Scripts, kind: str = "") -> Iterator[bytes]:
    yield from scripts.client.scan_iter(match=f"{scripts.keys.prefix}{kind}*", count=SCAN_COUNT)
