"""From a URL to a client whose server is fit for a run. What is sent over it lives elsewhere."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

from pipeline.errors import ConfigError

_REMEDY_URL = "start a server there, or give another URL (--redis)"
_OLDEST = {"redis": 7, "valkey": 8}


def connect(url: str) -> redis.Redis:
    """A thread-safe client; raises ConfigError where the server is missing or unfit.

    Lost connections are retried with back-off for about ten seconds, which is safe since every
    script may be repeated. No command blocks on the server, so the socket's time-out only ever
    means that the server is gone.
    """
    shown = mask(url)
    try:
        check_fitness(_client(url, retries=2), shown)
        return _client(url, retries=12)
    except ValueError as exc:
        raise ConfigError(
            "redis URL", shown, rule=f"no URL of a server ({exc})", remedy="use redis://HOST:PORT/0"
        ) from exc
    except RedisError as exc:
        raise _unreachable(exc, shown) from exc


def check_fitness(client: redis.Redis, shown: str) -> None:
    """Raises ConfigError for a server that is too old or may evict keys."""
    info: dict[str, Any] = client.info()
    check_version(info, shown)
    policy = info["maxmemory_policy"]
    if policy != "noeviction":
        raise ConfigError(
            f"maxmemory-policy of {shown}",
            policy,
            rule="an evicted key is a lost group, so only noeviction is safe",
            remedy="CONFIG SET maxmemory-policy noeviction",
        )


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
    """The URL without its password."""
    parts = urlsplit(url)
    if parts.password is None:
        return urlunsplit(parts._replace(query="")) if parts.query else url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}", query=""))


def masked(client: redis.Redis) -> str:
    """Where this client connects to, for messages."""
    options = client.connection_pool.connection_kwargs
    if path := options.get("path"):
        return f"unix://{path}"
    return f"redis://{options.get('host', 'localhost')}:{options.get('port', 6379)}"


def _client(url: str, *, retries: int) -> redis.Redis:
    pool = redis.ConnectionPool.from_url(url)
    # After the URL's own options, so that none of them can change how replies are read.
    pool.connection_kwargs.update(
        protocol=2,
        decode_responses=False,
        socket_timeout=10.0,
        socket_connect_timeout=3.0,
        health_check_interval=30,
        retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), retries, (NoConnection, NoAnswer)),
    )
    return redis.Redis(connection_pool=pool)


def _unreachable(exc: RedisError, shown: str) -> ConfigError:
    said = str(exc)
    if isinstance(exc, AuthenticationError) or "NOAUTH" in said or "WRONGPASS" in said:
        return ConfigError(
            "redis URL",
            shown,
            rule="the server refused the name or the password",
            remedy="put the right ones into the URL (redis://NAME:PASSWORD@HOST:PORT)",
        )
    if isinstance(exc, ResponseError):
        return ConfigError(
            "redis URL", shown, rule=f"the server refused: {exc}", remedy=_REMEDY_URL
        )
    return ConfigError("redis URL", shown, rule="no server answers there", remedy=_REMEDY_URL)
