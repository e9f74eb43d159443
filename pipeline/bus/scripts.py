"""Loads the Lua scripts and runs them: EVALSHA, with the text where the server lacks it.

A script's first line is its shebang; a line `--include NAME …` is replaced by those files. What the
scripts do is said in the scripts. Driver errors become ours here and nowhere else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import redis
from redis.exceptions import (
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)

from pipeline.bus.connection import masked
from pipeline.bus.errors import MemoryFull, Unreachable
from pipeline.bus.keys import Keys
from pipeline.errors import ConfigError, SluiceError

Arg = str | bytes | int
_INCLUDE = "--include "
# How Redis and Valkey say that a command inside a script is refused.
_REFUSED = re.compile("ACL failure in script|The user executing the script can't")
# One round trip carries at most so many scripts, lest a batch of cargo fill the socket's buffers.
_BATCH = 64


def _read(name: str) -> str:
    return (files("pipeline.bus") / "lua" / f"{name}.lua").read_text(encoding="utf-8")


@cache
def text_of(name: str) -> str:
    """The script with its includes in place."""
    lines = []
    for line in _read(name).splitlines():
        if line.startswith(_INCLUDE):
            lines += [_read(part) for part in line.removeprefix(_INCLUDE).split()]
        else:
            lines.append(line)
    return "\n".join(lines)


@cache
def is_read_only(name: str) -> bool:
    """Whether the script says that it writes nothing, as its caller's rights may ask for."""
    return "no-writes" in text_of(name).partition("\n")[0]


@cache
def _sha_of(name: str) -> str:
    return hashlib.sha1(text_of(name).encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """The acts of one run on one server. Thread-safe; every act may be repeated."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client = client
        self.keys = keys

    def call(self, name: str, *args: Arg) -> Any:
        """One act; raises Unreachable, MemoryFull, or SluiceError for a script's own error."""
        return self.call_many(name, [args])[0]

    def call_many(self, name: str, rows: Sequence[Sequence[Arg]]) -> list[Any]:
        """The act once for each row of arguments, in one round trip."""
        replies: list[Any] = []
        for first in range(0, len(rows), _BATCH):
            replies += self._run(name, rows[first : first + _BATCH])
        return replies

    def read(self, *commands: Sequence[Any]) -> list[Any]:
        """Plain reads in one round trip. No transaction: a full server would refuse its reads."""
        return self._plain(commands)

    def write(self, *commands: Sequence[Any]) -> None:
        """Plain writes in one round trip; raises MemoryFull where the server takes none."""
        self._plain(commands)

    def _plain(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        try:
            with self.client.pipeline(transaction=False) as pipe:
                send: Any = pipe.execute_command
                for command in commands:
                    send(*command)
                return pipe.execute()
        except RedisError as exc:
            raise self.error(exc) from exc

    def _run(self, name: str, rows: Sequence[Sequence[Arg]]) -> list[Any]:
        try:
            replies = self._send(name, rows)
            if any(isinstance(reply, NoScriptError) for reply in replies):
                self.client.script_load(text_of(name))
                replies = self._send(name, rows)
        except RedisError as exc:
            raise self.error(exc) from exc
        for reply in replies:
            if isinstance(reply, RedisError):
                raise self.error(reply) from reply
        return replies

    def _send(self, name: str, rows: Sequence[Sequence[Arg]]) -> list[Any]:
        command = "EVALSHA_RO" if is_read_only(name) else "EVALSHA"
        with self.client.pipeline(transaction=False) as pipe:
            send: Any = pipe.execute_command
            for row in rows:
                send(command, _sha_of(name), 1, self.keys.run, *row)
            return pipe.execute(raise_on_error=False)

    def error(self, exc: RedisError) -> SluiceError:
        """The driver's error as ours, without secrets."""
        if isinstance(exc, OutOfMemoryError):
            return MemoryFull(f"the server is full: {exc}")
        if isinstance(exc, NoPermissionError) or _REFUSED.search(str(exc)):
            return ConfigError(
                f"the user of {masked(self.client)}",
                None,
                rule=f"lacks a right on {self.keys.prefix}* ({exc})",
                remedy="give it the rules that `sluice doctor RUN.toml --acl` prints",
            )
        if "NORUN" in str(exc):
            return SluiceError(f"run {self.keys.prefix!r} is not open on this server")
        if isinstance(exc, ResponseError):
            return SluiceError(f"the server refused an act: {exc}")
        return Unreachable(f"{masked(self.client)} does not answer: {type(exc).__name__}")
