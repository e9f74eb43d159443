"""The bus: one run on one server, as its desks and what they have in common."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import redis
from msgspec import Struct

from pipeline.bus.audit import take_audit
from pipeline.bus.blobs import PIECE_BYTES, Blobs
from pipeline.bus.completions import Completions
from pipeline.bus.connection import connect, masked
from pipeline.bus.evaluations import Evaluations
from pipeline.bus.groups import Groups
from pipeline.bus.keeping import count_keys, delete_keys, read_awake, read_runs
from pipeline.bus.keys import Keys
from pipeline.bus.leading import Leading
from pipeline.bus.leases import poll, unless_gone
from pipeline.bus.look import (
    read_generated,
    read_letters,
    read_snapshot,
    read_start_steps,
    read_state,
)
from pipeline.bus.prompts import Prompts
from pipeline.bus.scripts import Arg, Scripts
from pipeline.bus.versions import Versions
from pipeline.codec import encode
from pipeline.errors import ConfigError
from pipeline.messages import Beat
from pipeline.watch import Audit, Letter, Snapshot, State

log = logging.getLogger(__name__)

SCHEMA = 1
OPEN_SECONDS = 60.0


class Pulse(Struct, frozen=True):
    """What a beat hears: the newest version, the trainer's step, whether the run has stopped and
    why, which of the held groups are no longer open, and the last version whose evaluation is
    over."""

    version: int
    step: int
    stop: str
    reason: str
    closed: tuple[str, ...]
    evaluated: int = -1


class Bus:
    """Thread-safe and blocking; every act is one atomic script that may be repeated.

    Acts raise Unreachable after bounded retries, and SluiceError where the run is not open.
    """

    def __init__(
        self, client: redis.Redis, run: str, *, piece_bytes: int = PIECE_BYTES, url: str = ""
    ) -> None:
        """Cargo above `piece_bytes` travels in pieces of that size; `url` is where `client` is."""
        self._client, self._run, self.url = client, run, url
        self._keys = Keys(run)
        self._scripts = Scripts(client, self._keys)
        blobs = Blobs(self._scripts, piece_bytes)
        self.prompts = Prompts(self._scripts, blobs)
        self.completions = Completions(self._scripts, blobs)
        leading = Leading(self._scripts)
        self.groups = Groups(self._scripts, leading, blobs)
        self.versions = Versions(self._scripts, leading)
        self.evaluations = Evaluations(self._scripts, leading)

    @classmethod
    def connect(cls, url: str, run: str) -> Bus:
        """`url` is redis://, rediss:// or unix://; raises ConfigError where the server is unfit."""
        return cls(connect(url), run, url=url)

    def open(
        self,
        identity: Mapping[str, str],
        *,
        window: int,
        per_step: int,
        lag_max: int,
        members: int,
        lease_seconds: float | None = None,
        group_deadline_seconds: float | None = None,
        enough: int | None = None,
        wait: float = OPEN_SECONDS,
    ) -> None:
        """Create the run, or resume one that is equal; raises ConfigError naming what differs.

        So it does where the server is too full for a new run to admit anything, and where the
        user's rights do not make a run, and nobody else does for `wait` seconds.

        A key of the identity that the run does not have yet is added to it (the data set's hash).
        `enough` is the least number of scored members with which a group is released at its
        deadline. This and the durations are no part of the identity: None leaves them (at first
        all members, 15 and 600 seconds).
        """
        args: list[Arg] = [SCHEMA, _ms(lease_seconds), _ms(group_deadline_seconds)]
        args.append("" if enough is None else enough)
        numbers = {"window": window, "per_step": per_step, "lag_max": lag_max, "members": members}
        # Identity first: it names keys of RUN.toml, the numbers are derived from them.
        for key, value in ({f"id:{k}": v for k, v in identity.items()} | numbers).items():
            args += [key, value]
        status, *said = self._opened(args, wait=wait)
        if status == b"memory":
            used, most = said
            raise ConfigError(
                f"maxmemory of {masked(self._client)}",
                most,
                rule=f"{used} bytes are used, and beyond 75 % a run admits nothing",
                remedy="raise maxmemory, or remove old runs (sluice purge)",
            )
        if status == b"mismatch":
            key, stored, given = (part.decode() for part in said)
            raise ConfigError(
                key.removeprefix("id:"),
                given,
                rule=f"run {self._run} was made with {stored!r}",
                remedy="restore that value, or choose another run name",
            )

    def _opened(self, args: Sequence[Arg], *, wait: float) -> list[Any]:
        def once() -> list[Any]:
            return cast(list[Any], self._scripts.call("open", *args))

        reply = once()
        if reply[0] == b"unopened":
            log.info("waiting for the run to be opened, which this user may not do")
            reply = poll(once, lambda reply: reply[0] != b"unopened", wait)
        if reply[0] == b"unopened":
            raise ConfigError(
                "run",
                self._run,
                rule=f"is not open at {masked(self._client)}, and this user may not open it"
                f" ({reply[1].decode()})",
                remedy="start prompting or training, which may",
            )
        return reply

    def beat(self, beat: Beat, held: Sequence[str] = ()) -> Pulse:
        """A sign of life, which keeps every lease of the boot; `held` are ids of groups.

        The first act of a boot; a name that was declared dead never lives again. Raises Gone.
        """
        assert "|" not in beat.boot, f"a boot's name may have no '|': {beat.boot}"
        status, *reply = self._scripts.call(
            "beat", beat.boot, beat.service, beat.instance, encode(beat), *held
        )
        unless_gone(status, beat.boot)
        version, step, stop, reason, evaluated, *closed = (part.decode() for part in reply)
        return Pulse(
            version=int(version),
            step=int(step),
            stop="" if stop == "running" else stop,
            reason=reason,
            closed=tuple(closed),
            evaluated=int(evaluated),
        )

    def bury(self, instance: str) -> int:
        """Declare every boot of this instance dead, so that others take over at once; how many."""
        return int(self._scripts.call("bury", instance))

    def state(self) -> State:
        """Where the run stands."""
        return read_state(self._scripts)

    def snapshot(self) -> Snapshot:
        """One consistent look at everything but cargo."""
        return read_snapshot(self._scripts)

    def start_steps(self) -> tuple[Counter[int], Counter[int]]:
        """How many groups were begun by weights of which step: those in flight, and whole ones."""
        return read_start_steps(self._scripts)

    def generated_tokens(self) -> int:
        """Tokens that came out of engines."""
        return read_generated(self._scripts)

    def audit(self) -> Audit:
        """Whether every group alive is in one place and the ledger balances; in small looks."""
        return take_audit(self._scripts)

    def dead_letters(self, count: int) -> tuple[Letter, ...]:
        """The last so many, the newest first."""
        return read_letters(self._scripts, count)

    def runs(self) -> list[str]:
        """The names of all runs on this server, or of many."""
        return read_runs(self._scripts)

    def awake(self) -> dict[str, str]:
        """Boots that beat within the last lease, and the instances that they are."""
        return read_awake(self._scripts)

    def server(self) -> dict[str, Any]:
        """What the server says of itself: its version, its process id on its own machine."""
        about: dict[str, Any] = self._scripts.read(("INFO", "server"))[0]
        return about

    def is_open(self) -> bool:
        """Whether there is such a run, and its removal was not begun."""
        return bool(self._scripts.read(("EXISTS", self._keys.run))[0])

    def keys(self) -> int:
        """How many keys this run has; 0 where there is no such run."""
        return count_keys(self._scripts)

    def purge(self) -> int:
        """Delete every key of this run, and no other; how many. The caller asks first."""
        return delete_keys(self._scripts)

    def close(self) -> None:
        """Drop the connections. Nothing is given back."""
        self._client.close()
        self._client.connection_pool.disconnect()


def _ms(seconds: float | None) -> Arg:
    return "" if seconds is None else round(seconds * 1000)
