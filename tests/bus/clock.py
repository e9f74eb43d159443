"""Time passes on the server by moving what it wrote down; each move checks it against the model.

So no test sleeps, and the scripts, which know the server's clock only, need no door for tests.
"""

from __future__ import annotations

import redis
from spec.world import World

from pipeline.bus.keys import Keys

SLACK_MS = 9_000
"""A real clock runs on beside the model's; all that the rules compare lies further apart."""


class Clock:
    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client, self.keys = client, keys

    def forward(self, w: World, ms: int) -> None:
        """Nothing acts for so long."""
        self.check(w)
        before = set(w.groups)
        w.pass_time(ms)
        self.write(w, before)

    def check(self, w: World) -> None:
        """What the server wrote down is as old as the model says, give or take the real time."""
        stamps, now = self._stamps(w), self._now_ms()
        read = self.client.pipeline(transaction=False)
        for key, field, _ in stamps:
            read.zscore(key, field) if key in (self.keys.beat, self.keys.due) else read.hget(
                key, field
            )
        for (_, field, then), found in zip(stamps, read.execute(), strict=True):
            assert found is not None, f"{field} has no time"
            drift = (now - float(found)) - (w.now - then)
            assert -50 <= drift <= SLACK_MS, f"{field} is off by {drift} ms"
        for g in w.groups.values():
            if g.ends is not None:
                left = self.client.pttl(self.keys.group(g.name))
                assert 0 <= (g.ends - w.now) - left <= SLACK_MS, f"tombstone {g.name}: {left} ms"

    def write(self, w: World, known: set[str]) -> None:
        """Every time of the world; of `known` groups those that are no more go."""
        now = self._now_ms()
        pipe = self.client.pipeline(transaction=False)
        for key, field, then in self._stamps(w):
            stamp = now - (w.now - then)
            if key in (self.keys.beat, self.keys.due):
                pipe.zadd(key, {field: stamp})
            else:
                pipe.hset(key, field, str(stamp))
        for name in known - set(w.groups):
            pipe.delete(self.keys.group(name))
        for g in w.groups.values():
            if g.ends is not None:
                pipe.pexpire(self.keys.group(g.name), g.ends - w.now)
        pipe.execute()

    def _stamps(self, w: World) -> list[tuple[str, str, int]]:
        out = [(self.keys.due, g.name, g.due) for g in w.groups.values() if g.due is not None]
        for name, b in w.boots.items():
            if b.beat:
                out.append((self.keys.beat, name, b.beat))
            if b.died is not None:
                out.append((self.keys.who, f"{name}|died", b.died))
            out += [(self.keys.who, f"{name}|seen", b.seen)]
            out += [(self.keys.who, f"{name}|since", b.since)]
        return out

    def _now_ms(self) -> int:
        seconds, micros = self.client.time()
        return seconds * 1000 + micros // 1000
