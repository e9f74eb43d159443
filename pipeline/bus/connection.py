"""From a URL to a client whose server is fit for a run. What is sent over it lives elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

from pipeline.errors import ConfigError

_REMEDY_URL = "start a server there, or give another URL (--redis)"
_OLDEST = {"redis": 7, "valkey": 8}
_FIRST_RETRIES = 2
_LOOK_SECONDS = 0.1

PATIENCE_SECONDS = 10.0
ANSWER_SECONDS = 3.0

T = TypeVar("T")


def connect(url: str) -> redis.Redis:
    """A thread-safe client; raises ConfigError where the server is missing or unfit.

    Whatever a server fails to answer is tried again with back-off for ten seconds in all, which is
    safe since every script may be repeated. No command blocks on the server, so the socket's
    time-out, three seconds, only ever means that the server is gone.
    """
    shown = mask(url)
    try:
        with client_of(url, retries=_FIRST_RETRIES) as first:
            check_fitness(first, shown)
        return client_of(url)
    except (ValueError, TypeError) as exc:  # TypeError: an option of the query that nobody knows
        raise ConfigError(
            "redis URL", shown, rule=f"no URL of a server ({exc})", remedy="use redis://HOST:PORT/0"
        ) from exc
    except RedisError as exc:
        raise _unreachable(exc, shown) from exc


def check_fitness(
    client: redis.Redis, shown: str, *, patience_seconds: float = PATIENCE_SECONDS
) -> None:
    """Raises ConfigError for a server that is too old, may evict keys, or cannot be written to."""
    info = _loaded(client, shown, patience_seconds)
    check_version(info, shown)
    if info["role"] != "master":
        raise ConfigError(
            "redis URL",
            shown,
            rule="it is a replica, which takes no writes",
            remedy=f"give the primary's URL ({info['master_host']}:{info['master_port']})",
        )
    policy = info["maxmemory_policy"]
    if policy != "noeviction":
        raise ConfigError(
            f"maxmemory-policy of {shown}",
            policy,
            rule="an evicted key is a lost group, so only noeviction is safe",
            remedy="CONFIG SET maxmemory-policy noeviction",
        )


def _loaded(client: redis.Redis, shown: str, patience_seconds: float) -> dict[str, Any]:
    """What the server says of itself, once it has read its data; raises ConfigError if it has not.

    A server that comes back after a crash answers no act meanwhile.
    """
    deadline = time.monotonic() + patience_seconds
    while not (info := _info(client)) or info.get("loading"):
        if time.monotonic() > deadline:
            raise ConfigError(
                "redis URL",
                shown,
                rule="the server still reads its data from disk",
                remedy="start again when it is done",
            )
        time.sleep(_LOOK_SECONDS)
    return info


def _info(client: redis.Redis) -> dict[str, Any]:
    try:
        info: dict[str, Any] = client.info()
        return info
    except BusyLoadingError:  # to one server this is what it says of itself, to another an act
        return {}


def check_version(info: dict[str, Any], shown: str) -> None:
    """Raises ConfigError for a server older than Redis 7 or Valkey 8."""
    kind = "valkey" if "valkey_version" in info else "redis"
    version = str(info[f"{kind}_version"])
    if int(version.split(".")[0]) < _OLDEST[kind]:
        raise ConfigError(
            f"{kind} at {shown}",
            version,
            rule="Redis 7 or Valkey 8 is the oldest that runs the scripts",
            remedy="upgrade the server",
        )


def mask(url: str) -> str:
    """The URL without its password, also where it is no URL that could be parsed."""
    scheme, separator, rest = url.partition("://")
    rest = re.sub(r"(?<=[?&])password=[^&]*&?", "", rest).rstrip("?&")
    credentials, _, place = rest.rpartition("@")
    name, colon, _ = credentials.partition(":")
    return f"{scheme}{separator}{name}:***@{place}" if colon else scheme + separator + rest


def masked(client: redis.Redis) -> str:
    """Where this client connects to, for messages."""
    options = client.connection_pool.connection_kwargs
    if path := options.get("path"):
        return f"unix://{path}"
    is_safe = issubclass(client.connection_pool.connection_class, redis.SSLConnection)
    scheme, host = "rediss" if is_safe else "redis", options.get("host", "localhost")
    return f"{scheme}://{host}:{options.get('port', 6379)}"


def client_of(
    url: str,
    *,
    retries: int = -1,
    patience_seconds: float = PATIENCE_SECONDS,
    answer_seconds: float = ANSWER_SECONDS,
) -> redis.Redis:
    """A client that is not connected yet; `patience_seconds` bounds all attempts of one act.

    An attempt has `answer_seconds`; one that began in time may end that much after the deadline.
    `retries` bounds their number besides, where it is not negative. Raises ValueError.

    The URL's `password_file=PATH` is read here: a secret of a container, or of a systemd unit, is a
    file, and should stand neither in an argument nor in the environment.
    """
    pool = redis.ConnectionPool.from_url(url)
    if path := pool.connection_kwargs.pop("password_file", ""):
        pool.connection_kwargs["password"] = _password(path)
    # After the URL's own options, so that none of them can change how replies are read.
    pool.connection_kwargs.update(
        protocol=2,
        decode_responses=False,
        socket_timeout=answer_seconds,
        socket_connect_timeout=answer_seconds,
        health_check_interval=30,
        retry=_Patience(retries, patience_seconds),
    )
    return redis.Redis(connection_pool=pool)


def _password(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as exc:
        remedy = "name a file that this user may read"
        rule = f"cannot be read ({exc})"
        raise ConfigError("redis URL's password_file", path, rule=rule, remedy=remedy) from exc


_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Acts of this thread inside the block give up after so many seconds in all.

    For whoever has to say that there is no answer while others still hope for one.
    """
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


class _Patience(Retry):
    """Back-off up to a deadline, which the attempts to connect within an attempt share."""

    def __init__(self, retries: int, seconds: float) -> None:
        backoff = ExponentialBackoff(cap=1.0, base=0.05)
        super().__init__(backoff, retries, (NoConnection, NoAnswer))
        self._seconds = seconds

    def call_with_retry(
        self,
        do: Callable[[], T],
        fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None,
        with_failure_count: bool = False,
    ) -> T:
        deadline = _deadline.get() or time.monotonic() + self._seconds
        token = _deadline.set(deadline)

        def in_time(error: Exception) -> bool:
            return time.monotonic() < deadline and (is_retryable is None or is_retryable(error))

        try:
            # Named only where it is wanted: older releases of the driver do not know it.
            count = {"with_failure_count": True} if with_failure_count else {}
            return super().call_with_retry(do, fail, in_time, **count)
        finally:
            _deadline.reset(token)


def _unreachable(exc: RedisError, shown: str) -> ConfigError:
    said = str(exc)
    if isinstance(exc, AuthenticationError) or "NOAUTH" in said or "WRONGPASS" in said:
        return ConfigError(
            "redis URL",
            shown,
            rule="the server refused the name or the password",
            remedy="put the right ones into the URL (redis://NAME:PASSWORD@HOST:PORT)",
        )
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return ConfigError(
            "redis URL",
            shown,
            rule="the server's certificate is not one that this machine trusts",
            remedy="name its authority in the URL: ?ssl_ca_certs=/path/to/ca.pem",
        )
    if isinstance(exc, ResponseError):
        return ConfigError(
            "redis URL", shown, rule=f"the server refused: {exc}", remedy=_REMEDY_URL
        )
    return ConfigError("redis URL", shown, rule="no server answers there", remedy=_REMEDY_URL)
