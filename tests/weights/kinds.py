"""A transport of each kind, over a folder or a server, as each process of a run opens it."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from pipeline.protocols import Transport
from pipeline.weights import files, redis
from pipeline.weights.delta import layered
from pipeline.weights.remote import RemoteTransport
from pipeline.weights.shm import ShmTransport

Open = Callable[[Path], Transport]
WHOLE_EVERY = 3


def run_of(folder: Path) -> str:
    return "w" + hashlib.blake2b(str(folder).encode(), digest_size=8).hexdigest()


def shm(folder: Path, _: str, whole_every: int) -> Transport:
    return ShmTransport(folder=str(folder), run="run")


def plain(folder: Path, _: str, whole_every: int) -> Transport:
    return files.build(folder=str(folder), whole_every=whole_every, run="run")


def remote(folder: Path, _: str, whole_every: int) -> Transport:
    """Of fsspec's file systems the one that processes share; it writes in place."""
    make = partial(RemoteTransport, system=LocalFileSystem(), folder=str(folder), run="run")
    return layered(make, whole_every)


def by_redis(folder: Path, url: str, whole_every: int) -> Transport:
    return redis.build(whole_every=whole_every, run=run_of(folder), redis=url)


KINDS: dict[str, Callable[[Path, str], Transport]] = {
    "shm": partial(shm, whole_every=1),
    "files": partial(plain, whole_every=1),
    "files-patches": partial(plain, whole_every=WHOLE_EVERY),
    "remote": partial(remote, whole_every=1),
    "redis": partial(by_redis, whole_every=1),
    "redis-patches": partial(by_redis, whole_every=WHOLE_EVERY),
}
