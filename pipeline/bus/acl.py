"""The least that each kind of process may do on the server, as rules for ACL SETUSER.

The server checks the commands inside a script against the rights of its caller, so whatever a user
can do by an act it can do by hand. Users therefore differ by the keys that they may write, and two
acts that write the same keys cannot be told apart. All read the whole run, and no other one.

Who runs which act, and writes which keys, stands in one table; the commands are read from the
scripts themselves. Enforcing is the server's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pipeline.bus.keys import Keys
from pipeline.bus.scripts import is_read_only, text_of

_CALL = re.compile(r"redis\.p?call\('([A-Z]+)'(?:, '([A-Z]+)')?")
_CONTAINERS = ("XGROUP", "XINFO")
_CONNECT = ("info", "ping", "script|load")
_WRITING = (
    "del expire hdel hincrby hset hsetnx persist set unlink xack xadd xclaim xdel xgroup|create"
    " xgroup|delconsumer xreadgroup zadd zrem"
)


class Rights(NamedTuple):
    """Of one user: the scripts that it runs, its commands outside of scripts, the keys it writes.

    Words with spaces between them; keys without the run's prefix.
    """

    acts: str
    commands: str
    writes: str


_JOIN = "open snapshot beat"
_ALIVE = "run beat who"  # of everybody who joins a run
_WORK = "g:* b:* prompts completions groups live due led dead eval:*"  # of whoever may end a member

RIGHTS = {
    "prompting": Rights(
        acts=f"{_JOIN} admit evaluate",
        commands="hgetall",
        writes=f"{_ALIVE} state g:* prompts completions live eval:*",
    ),
    "inference": Rights(
        acts=f"{_JOIN} take save deliver put give_back fail confirm remark",
        commands="get hget hmget hgetall set",
        writes=f"{_ALIVE} {_WORK} proof:*",
    ),
    "scoring": Rights(
        acts=f"{_JOIN} draw score put give_back fail",
        commands="get set",
        writes=f"{_ALIVE} {_WORK}",
    ),
    "training": Rights(
        acts=f"{_JOIN} lead collect commit refuse expire announce rollback finish conclude forgo",
        commands="exists get hdel hget hgetall hset unlink zcard zcount zrange zrangebyscore",
        writes="*",
    ),
    "watch": Rights(
        acts="snapshot audit",
        commands="exists scan time xrevrange",
        writes="",
    ),
}
"""`watch` is whoever looks on: doctor, top, report. A purge, and `sluice up`, take more."""


def rules(run: str) -> list[str]:
    """One command for each user of a run. They give no password, and take none away."""
    return [f"ACL SETUSER {run}-{user} on {' '.join(_rules(run, user))}" for user in RIGHTS]


def _rules(run: str, user: str) -> Iterator[str]:
    prefix, rights = Keys(run).prefix, RIGHTS[user]
    yield from ("resetkeys", "resetchannels", "-@all", f"%R~{prefix}*")
    yield from (f"~{prefix}{key}" for key in rights.writes.split())
    yield from (f"+{command}" for command in sorted(_commands(rights)))


def _commands(rights: Rights) -> set[str]:
    commands = {*_CONNECT, *rights.commands.split()}
    for act in rights.acts.split():
        if is_read_only(act):  # what it includes could write, and is never called
            commands |= {"evalsha_ro", *_inside(act)} - {*_WRITING.split()}
        else:
            commands |= {"evalsha", *_inside(act)}
    return commands


def _inside(act: str) -> set[str]:
    """The commands that the script's text names, its includes among it."""
    return {
        f"{command}|{word}".lower() if command in _CONTAINERS else command.lower()
        for command, word in _CALL.findall(text_of(act))
    }
