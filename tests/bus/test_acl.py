"""What `sluice doctor --acl` prints is enough for each service, and no more than it needs.

On Valkey, and on a Redis where the PATH has one: both check a script's commands by its caller.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from acts import TRAINER, Acts
from redis.client import Pipeline
from servers import Server, binary, running
from test_walk import Walk, revive

from pipeline.bus.acl import RIGHTS, rules
from pipeline.bus.bus import Bus
from pipeline.bus.connection import client_of
from pipeline.bus.keys import Keys
from pipeline.bus.scripts import text_of
from pipeline.errors import ConfigError, Gone, SluiceError
from pipeline.messages import Beat, Manifest

RUN, OTHER = "mine", "other"
SIZES = {"window": 12, "per_step": 3, "lag_max": 2, "members": 3}
SERVICES = ("training", "prompting", "inference", "scoring")
LUA = Path(__file__).resolve().parents[2] / "pipeline" / "bus" / "lua"


@pytest.fixture(scope="module", params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    executable = binary() if request.param == "valkey" else shutil.which("redis-server")
    if not executable:
        pytest.skip("no redis-server in the PATH")
    with running(executable) as server:
        yield server


@pytest.fixture
def admin(server: Server) -> Iterator[redis.Redis]:
    with client_of(server.url) as client:
        client.flushall()
        client.execute_command("ACL", "LOG", "RESET")
        for rule in rules(RUN):
            client.execute_command(*rule.split(), "resetpass", ">open")
        yield client


@pytest.fixture
def as_user(server: Server, admin: redis.Redis) -> Iterator[Callable[[str], Bus]]:
    """The bus of the run, as a user of the server sees it."""
    made: list[Bus] = []

    def make(user: str, run: str = RUN) -> Bus:
        made.append(Bus(client_of(_url(server, user)), run))
        return made[-1]

    yield make
    for bus in made:
        bus.close()


def _url(server: Server, user: str) -> str:
    return f"unix://{RUN}-{user}:open@{server.socket}"


class Users(redis.Redis):
    """A client whose every act is sent by the user whose act it is; what is left, by the admin."""

    def __init__(self, server: Server) -> None:
        super().__init__(connection_pool=client_of(server.url).connection_pool)
        self.pools = {u: client_of(_url(server, u)).connection_pool for u in RIGHTS}

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        pipeline = UsersPipeline(
            self.connection_pool, self.response_callbacks, transaction, shard_hint
        )
        pipeline.pools = self.pools
        return pipeline

    def close(self) -> None:
        for pool in (*self.pools.values(), self.connection_pool):
            pool.disconnect()


class UsersPipeline(Pipeline):
    pools: dict[str, redis.ConnectionPool]

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        for args, _ in self.command_stack[:1]:  # a pipeline is of one desk, whose user is one
            if user := _user_of(args, [args[0] for args, _ in self.command_stack]):
                self.connection_pool = self.pools[user]
        return super().execute(raise_on_error)


def _sha_of(act: str) -> str:
    return hashlib.sha1(text_of(act).encode(), usedforsecurity=False).hexdigest()


ACTS = {_sha_of(path.stem): path.stem for path in LUA.glob("[a-z]*.lua")}


def _user_of(args: Sequence[Any], commands: Sequence[str]) -> str | None:
    """None: an act of `sluice up` alone."""
    if not args[0].startswith("EVALSHA"):
        names = {command.lower() for command in commands}
        return next(u for u, may in RIGHTS.items() if names <= {*may.commands.split(), "info"})
    act, argv = ACTS[args[1]], [str(arg) for arg in args[4:]]
    if act == "beat":
        return argv[1]
    if act in ("give_back", "fail"):
        return {"prompts": "inference", "completions": "scoring"}[argv[0]]
    return next((u for u, rights in RIGHTS.items() if act in rights.acts.split()), None)


def _walk(server: Server, admin: redis.Redis, num_acts: int) -> Walk:
    """Every kind of act, many times over, in a random order, each by its own user."""
    with Users(server) as users:
        for service in SERVICES:
            with contextlib.closing(Bus(client_of(_url(server, service)), RUN)) as own:
                _open(own), own.snapshot()
                own.beat(Beat(service=service, instance=service, boot=f"{service}:1"))
        bus = Bus(users, RUN, piece_bytes=20)  # so that all cargo goes in pieces
        acts = Acts(bus, admin, RUN, **SIZES)
        _look(bus)
        _spoil(acts)
        walk = Walk(acts, seed=1)
        for _ in range(num_acts):
            try:
                walk.step()
            except Gone:
                revive(walk)
        bus.versions.reject(walk.engines[0].boot, 9, "for a test")
        bus.groups.rollback(1, 0)
        bus.groups.finish(1, "done", "")
    return walk


def _look(bus: Bus) -> None:
    bus.audit(), bus.dead_letters(1), bus.versions.steps(), bus.versions.newest()
    bus.groups.started(), bus.start_steps(), bus.runs(), bus.keys(), bus.is_open(), bus.server()


def _spoil(acts: Acts) -> None:
    """A group without a single score: its scorers end it. One that an engine ends."""
    engine, scorer = acts.engine("first:1"), acts.scorer("strict:1")
    acts.admit(1)
    acts.deliver_all(engine, acts.take(engine))
    one, *others = acts.draw(scorer)
    acts.bus.completions.fail(scorer, one, "for a test")
    assert set(acts.score(scorer, others, error="for a test")) == {"ok"}
    acts.admit(1)
    [lease] = acts.take(engine)
    acts.deliver(engine, lease, 0)
    acts.score(scorer, acts.draw(scorer))
    acts.bus.prompts.fail(engine, lease, "for a test")


def _refused(admin: redis.Redis) -> list[str]:
    """What the server refused to anybody, also inside a script that went on regardless."""
    rows = admin.execute_command("ACL", "LOG")
    said = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
    return [
        f"{row[b'username']} {row[b'object']}" for row in said if b"setinfo" not in row[b"object"]
    ]


def test_each_service_does_all_its_acts_under_its_own_user(
    server: Server, admin: redis.Redis
) -> None:
    walk = _walk(server, admin, 1500)
    assert _refused(admin) == []
    assert len(walk.committed) > 20, "it did not come to training"


KEYS = [(user, key) for user in SERVICES for key in RIGHTS[user].writes.split()]


@pytest.mark.parametrize(("user", "key"), KEYS, ids=lambda word: word)
def test_no_key_that_a_service_may_write_is_one_too_many(
    server: Server, admin: redis.Redis, user: str, key: str
) -> None:
    [rule] = [rule for rule in rules(RUN) if f" {RUN}-{user} " in rule]
    less = [word for word in rule.split() if word != f"~{Keys(RUN).prefix}{key}"]
    assert len(less) == len(rule.split()) - 1
    admin.execute_command(*less)
    with contextlib.suppress(SluiceError, AssertionError):
        _walk(server, admin, 600)
    assert f"{RUN}-{user}" in " ".join(_refused(admin))


def test_who_looks_on_may_run_no_command_that_writes(admin: redis.Redis) -> None:
    assert _writing(admin, "watch") == []
    assert "xadd" in _writing(admin, "inference")


def _writing(admin: redis.Redis, user: str) -> list[str]:
    [rule] = [rule for rule in rules(RUN) if f" {RUN}-{user} " in rule]
    names = [word[1:].partition("|")[0] for word in rule.split() if word[0] == "+"]
    about = admin.execute_command("COMMAND", "INFO", *names)
    return [name for name, info in about.items() if "write" in info["flags"]]


FORBIDDEN = """FLUSHALL; FLUSHDB; CONFIG GET *; CONFIG SET maxmemory 1; KEYS *; DEBUG SLEEP 0
SHUTDOWN NOSAVE; SCRIPT FLUSH; SCRIPT KILL; ACL LIST; ACL WHOAMI; MONITOR; CLIENT KILL TYPE normal
EVAL return 0; SAVE; REPLICAOF h 1; MULTI; PUBLISH a b; SUBSCRIBE a; DUMP sluice:{mine}:run
RENAME sluice:{mine}:run sluice:{mine}:gone; XTRIM sluice:{mine}:prompts MAXLEN 0
HGET sluice:{other}:state step; HSET sluice:{other}:state step 9; HGET elsewhere field"""
REFUSAL = "no permissions|No permissions|DEBUG command not allowed"
COMMANDS = [command.split() for command in FORBIDDEN.replace("\n", ";").split(";")]


@pytest.mark.parametrize("user", RIGHTS)
def test_a_service_may_run_nothing_else_and_touch_no_other_run(
    server: Server, admin: redis.Redis, user: str
) -> None:
    _open(Bus(client_of(server.url), OTHER))
    with client_of(_url(server, user)) as client:
        for command in COMMANDS:
            with pytest.raises(redis.exceptions.ResponseError, match=REFUSAL):
                client.execute_command(*command)
    with pytest.raises(ConfigError, match=r"lacks a right on sluice:\{other\}"):
        Bus(client_of(_url(server, user)), OTHER).snapshot()
    assert admin.hget(Keys(OTHER).state, "step") == b"0"


def _open(bus: Bus, wait: float = 0.0) -> None:
    bus.open({"model": "tiny"}, wait=wait, **SIZES)


NEXT = Manifest(version=1, step=0, epoch=1, fingerprint="f1", location="here")
OTHERS: dict[str, tuple[str, Callable[[Bus], object]]] = {
    "admit": (
        "inference scoring watch",
        lambda bus: bus.prompts.admit([], cursor=0, next_cursor=1, eof=False),
    ),
    "announce": (
        "prompting inference scoring watch",
        lambda bus: bus.versions.announce(NEXT, min_version=0),
    ),
    "lead": ("inference scoring watch", lambda bus: bus.groups.lead(2, "me:1")),
    "commit": (
        "inference scoring watch",
        lambda bus: bus.groups.commit(1, batch=1, changed=True, fates={}),
    ),
    "finish": ("inference scoring watch", lambda bus: bus.groups.finish(1, "done", "")),
    "confirm": (
        "prompting scoring watch",
        lambda bus: bus.versions.confirm(TRAINER, 0, "f0"),
    ),
    "reject": ("watch", lambda bus: bus.versions.reject(TRAINER, 0, "for a test")),
    "beat": (
        "watch",
        lambda bus: bus.beat(Beat(service="training", instance="x", boot="x:1")),
    ),
}
CASES = [(user, act) for act, (users, _) in OTHERS.items() for user in users.split()]


@pytest.mark.parametrize(("user", "act"), CASES, ids=lambda word: word)
def test_another_service_s_act_is_refused_where_it_writes_other_keys(
    server: Server,
    admin: redis.Redis,
    as_user: Callable[[str], Bus],
    user: str,
    act: str,
) -> None:
    Acts(Bus(client_of(server.url), RUN), admin, RUN)
    before = {key: admin.dump(key) for key in admin.scan_iter()}
    with pytest.raises(
        ConfigError, match=re.escape(f"lacks a right on sluice:{{{RUN}}}")
    ) as excinfo:
        OTHERS[act][1](as_user(user))
    assert "\n" not in str(excinfo.value) and "sluice doctor RUN.toml --acl" in str(excinfo.value)
    assert {key: admin.dump(key) for key in admin.scan_iter()} == before


def test_who_may_not_open_a_run_waits_for_who_may(
    admin: redis.Redis, as_user: Callable[[str], Bus]
) -> None:
    scoring, training = as_user("scoring"), as_user("training")
    with pytest.raises(ConfigError, match="start prompting or training, which may"):
        _open(scoring)
    assert admin.keys() == []
    opening = threading.Thread(target=lambda: _open(scoring, wait=20))
    opening.start()
    _open(training)
    opening.join(20)
    assert not opening.is_alive()
    assert scoring.beat(Beat(service="scoring", instance="s", boot="s:1")).version == -1


def test_rules_are_renewed_without_a_new_password(
    server: Server, admin: redis.Redis, as_user: Callable[[str], Bus]
) -> None:
    _open(as_user("training"))
    for rule in rules(RUN):
        admin.execute_command(*rule.split())
    assert as_user("watch").snapshot().state.step == 0
